"""Every field of an effect is applied: `apply` drops no instruction of a decision."""

import ast
import re
from dataclasses import fields

import pytest

from controlplane.commands.state.apply_sql import ATTEMPT_FIELDS, CHANGE_ATTEMPTS
from controlplane.domain.state import effects
from tests.architecture.source import ROOT

APPLIED_IN = ("controlplane/commands/state/apply.py", "controlplane/commands/state/apply_jobs.py")


def names_in_apply() -> set[str]:
    """Return every attribute that the modules read, and every text that they contain."""
    nodes = [node for path in APPLIED_IN for node in ast.walk(ast.parse((ROOT / path).read_text()))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return read | {str(node.value) for node in nodes if isinstance(node, ast.Constant)}


@pytest.mark.parametrize(
    "effect",
    [
        effects.Effects,
        effects.ChangeTask,
        effects.EndJob,
        effects.ForceStops,
        effects.NominateTasks,
        effects.ChangePool,
        effects.ChangeCell,
        effects.RaiseAlert,
        effects.ClearAlert,
    ],
    ids=lambda effect: effect.__name__,
)
def test_every_field_of_an_effect_is_read(effect: type) -> None:
    assert {field.name for field in fields(effect)} - names_in_apply() == set()


def test_every_field_of_a_changed_attempt_is_written() -> None:
    named = {field.name for field in fields(effects.ChangeAttempt)}
    assert {*named, "at"} == set(ATTEMPT_FIELDS)
    written = set(re.findall(r"\bi\.(\w+)", CHANGE_ATTEMPTS))
    assert set(ATTEMPT_FIELDS) - written == set()
