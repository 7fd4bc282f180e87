"""The reader of a page finds its blocks; the comparison finds each line that was not printed."""

from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.harness.pages import PageBlock, missing_lines, read_blocks, read_files

PRINTED = """job 12 (fit)
fit.1 | two
fit.0 | one
TASK     STATE      CELL
fit.0    succeeded  cell-2
  12/fit.0 ended on cell-2
"""


def test_a_block_has_the_excerpts_that_follow_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nls\n```\ntext\n```console\na\n```\n```yaml\nx: 1\n```\n```sh\npwd\n```\n"
    )
    assert read_blocks(page) == [PageBlock("ls\n", "a\n"), PageBlock("pwd\n")]
    assert read_files(page) == ["x: 1\n"]


def test_ids_cells_widths_and_the_order_of_tasks_may_differ() -> None:
    excerpt = """job 3 (fit)
fit.0 | one
fit.1 | two
fit.0  succeeded  cell-1
  3/fit.0 ended on cell-1
"""
    assert missing_lines(excerpt, PRINTED) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "job 12 (train)",
        "fit.0 | two",
        "fit.0  failed  cell-2",
        "12/fit.1 ended on cell-2",
    ],
)
def test_a_line_that_was_not_printed_is_found(wrong: str) -> None:
    assert missing_lines(f"job 12 (fit)\n{wrong}\n", PRINTED) == [wrong]


def test_lines_in_another_order_are_found() -> None:
    assert missing_lines("fit.0 succeeded\njob 12 (fit)\n", PRINTED) == ["job 12 (fit)"]


def test_the_tutorial_shows_the_files_that_it_submits() -> None:
    page = ROOT / "docs" / "tutorial.md"
    examples = ROOT / "examples" / "tutorial"
    shown = read_files(page)
    assert shown == [
        (examples / name).read_text() for name in ("report.yaml", "load.yaml", "fit.yaml")
    ]
