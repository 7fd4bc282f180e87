"""Read the shell blocks of a page of the documentation, and compare output with its excerpts."""

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(?P<kind>sh|console|yaml)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT_OF_A_TASK = re.compile(r"^[\w.-]+\.\d+ \| ")
# What differs from one run to the next: ids of jobs, and the cell.
_DIFFERS = (
    (re.compile(r"\bjob \d+"), "job N"),
    (re.compile(r"\b\d+/(?=[a-z])"), "N/"),
    (re.compile(r"\bcell-\d+"), "cell-N"),
)


@dataclass(frozen=True, slots=True)
class PageBlock:
    """The lines of a block that is marked `sh`, and the excerpt of its output, if one follows."""

    lines: str
    excerpt: str = ""


def read_blocks(page: Path) -> list[PageBlock]:
    """Return every block of the page that is marked `sh`, in order."""
    blocks: list[PageBlock] = []
    for found in _FENCE.finditer(page.read_text()):
        if found["kind"] == "sh":
            blocks.append(PageBlock(found["lines"]))
        elif found["kind"] == "console" and blocks:
            last = blocks[-1]
            blocks[-1] = PageBlock(last.lines, last.excerpt + found["lines"])
    return blocks


def read_files(page: Path) -> list[str]:
    """Return every block of the page that is marked `yaml`."""
    return [
        found["lines"] for found in _FENCE.finditer(page.read_text()) if found["kind"] == "yaml"
    ]


def missing_lines(excerpt: str, output: str) -> list[str]:
    """Return the lines of the excerpt that the output lacks.

    A line of the excerpt is a part of a line of the output. Ids of jobs, cells and the widths of
    columns may differ. The lines come in the order of the excerpt, except for the output of tasks.
    """
    printed = [_steady(line) for line in output.splitlines()]
    missing, first = [], 0
    for line in excerpt.splitlines():
        wanted = _steady(line)
        is_of_task = _OUTPUT_OF_A_TASK.match(line) is not None
        start = 0 if is_of_task else first
        places = [at for at in range(start, len(printed)) if wanted in printed[at]]
        if not places:
            missing.append(line)
        elif not is_of_task:
            first = places[0] + 1
    return missing


def _steady(line: str) -> str:
    for pattern, text in _DIFFERS:
        line = pattern.sub(text, line)
    return " ".join(line.split())
