"""Every alert that the code can raise is explained to operators, and no other."""

import ast
import importlib
from collections.abc import Iterator

from controlplane.domain.alerts import ALERTS, QUIET_SECONDS
from tests.architecture.source import ROOT, sources

PAGE = (ROOT / "docs" / "operations.md").read_text()


def kinds() -> Iterator[str]:
    """The first argument of each `RaiseAlert`; a constant by its value in the module."""
    for source in sources():
        if not source.path.startswith("controlplane/"):
            continue
        module = source.path.removesuffix(".py").replace("/", ".")
        for node in ast.walk(source.tree):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RaiseAlert"):
                continue
            kind = node.args[0]
            if isinstance(kind, ast.Constant):
                yield str(kind.value)
            else:
                assert isinstance(kind, ast.Name), f"{source.path}: the kind is no name"
                yield getattr(importlib.import_module(module), kind.id)


def test_exactly_the_raised_alerts_are_explained() -> None:
    raised = set(kinds())
    assert len(raised) > 15
    assert sorted(ALERTS) == sorted(raised)


def test_alerts_that_close_by_age_are_raised_and_documented() -> None:
    raised = set(kinds())
    named = PAGE[PAGE.index("## Alerts") : PAGE.index("## Failures")]
    for kind in QUIET_SECONDS:
        assert kind in raised
        assert f"`{kind}`" in named
