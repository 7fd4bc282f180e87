"""Each row's scenarios find planted mistakes: some of them in each run, in the long suite all."""

import ast
import os
from typing import Any
from zlib import crc32

import pytest

from docgen.scenarios_page import ROWS as PAGE_ROWS
from tests.mutations.row_mutation import RowMutation
from tests.mutations.rows import ROWS
from tests.mutations.running import ROOT, mutate
from tests.mutations.trying import SCENARIOS, is_found

AT_ONCE = 3
# Rotates with the seeds of the run, which are printed in its head.
FIRST = crc32(os.environ["SIMULATION_BASE"].encode()) % len(ROWS)
ROTATED = [*ROWS[FIRST:], *ROWS[:FIRST]]


def marked(mutation: RowMutation) -> Any:
    """The mistake as a parameter, with the mark of its scenario: whether that needs an engine."""
    file, name = mutation.test.split("::")
    tree = ast.parse((ROOT / SCENARIOS / file).read_text())
    [scenario] = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name]
    needs_engine = "pytest.mark.engine" in map(ast.unparse, scenario.decorator_list)
    return pytest.param(mutation, marks=pytest.mark.engine if needs_engine else ())


def names(mutation: RowMutation) -> str:
    return f"{mutation.row}-{mutation.name}"


def find(mutation: RowMutation) -> None:
    found = is_found(mutation, database=f"rows_{os.getpid()}")
    assert found, f"{mutation.file} may have this mistake unseen: {mutation.breaks}"


@pytest.mark.parametrize("mutation", ROWS, ids=names)
def test_each_mistake_fits_its_file_and_names_a_scenario(mutation: RowMutation) -> None:
    assert mutate((ROOT / mutation.file).read_text(), mutation)
    file, function = mutation.test.split("::")
    assert f"\ndef {function}(" in (ROOT / SCENARIOS / file).read_text()


def test_every_row_has_a_mistake_that_it_finds() -> None:
    assert {mutation.row for mutation in ROWS} == {row.name for row in PAGE_ROWS}


@pytest.mark.parametrize("mutation", [marked(one) for one in ROTATED[:AT_ONCE]], ids=names)
def test_some_planted_mistakes_are_found(mutation: RowMutation) -> None:
    find(mutation)


@pytest.mark.soak
@pytest.mark.parametrize("mutation", [marked(one) for one in ROTATED[AT_ONCE:]], ids=names)
def test_all_planted_mistakes_are_found(mutation: RowMutation) -> None:
    find(mutation)
