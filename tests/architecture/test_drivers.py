"""Every driver is named in every list of drivers."""

import tomllib

import pytest

from docgen.settings_page import MEANINGS
from tests.architecture.source import ROOT
from tests.conformance.kit import KITS
from workers.agent.registration import TASK_TYPES
from workers.config import DRIVERS
from workers.drivers.registry import _MAKERS


def test_lists_of_drivers_agree() -> None:
    assert set(_MAKERS) == set(DRIVERS) == set(TASK_TYPES) == set(KITS)


@pytest.mark.parametrize("name", DRIVERS)
def test_driver_is_independent_and_documented(name: str) -> None:
    importlinter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (c for c in importlinter["contracts"] if c["id"] == "drivers-are-independent")
    assert f"workers.drivers.{name}" in contract["modules"]
    assert f"`{name}`" in MEANINGS["CELLRUN_CELL_DRIVER"]
    assert f"\n| `{name}` |" in (ROOT / "docs" / "cells.md").read_text()
