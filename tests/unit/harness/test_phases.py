"""Files that share a stack name their group, so that one worker runs them."""

import pytest

from tests.architecture.source import ROOT
from tests.harness.phases import PHASES, group_of, names_marker

E2E = sorted((ROOT / "tests" / "e2e").rglob("test_*.py"))
SHARED = [path for path in E2E if "shared_stack" in path.read_text()]
ONE_CELL = [path for path in E2E if path.parent.name == "one_cell" and names_marker(path, "stack")]


def test_files_that_share_a_stack_are_one_group() -> None:
    assert len(SHARED) > 1
    assert len(ONE_CELL) > 1
    groups = [
        {group_of(str(path.relative_to(ROOT))) for path in part} for part in (SHARED, ONE_CELL)
    ]
    assert groups == [{"shared stack"}, {"one cell"}]


def test_file_without_a_group_is_its_own() -> None:
    assert group_of("tests/e2e/test_loop.py") == "tests/e2e/test_loop.py"


@pytest.mark.parametrize(("file", "markers"), [("test_loop.py", {"stack"}), ("stack.py", set())])
def test_phase_of_a_file_is_the_marker_that_it_names(file: str, markers: set[str]) -> None:
    path = ROOT / "tests" / "e2e" / file
    assert {marker for marker in PHASES if names_marker(path, marker)} == markers
