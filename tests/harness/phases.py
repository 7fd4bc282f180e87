"""The phases of `make test` that run alone, and the files of one that share a stack."""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

PHASES = "stack", "serial"
"""Markers of tests that `make` runs alone: each of their files names its marker."""

_ROOT = Path(__file__).resolve().parents[2]
_GROUP = re.compile(r'mark\.xdist_group\("(.+?)"\)')


@cache
def names_marker(path: Path, marker: str) -> bool:
    """Return whether a file of tests names the marker."""
    return f"mark.{marker}" in path.read_text()


@cache
def group_of(file: str) -> str:
    """Return the group that a file of tests names, or the file itself."""
    found = _GROUP.search((_ROOT / file).read_text())
    return found[1] if found else file


class StackScheduling(LoadFileScheduling):
    """Gives all tests of a file, and all files of a group, to one worker.

    xdist has `--dist loadgroup` for it, which takes tests without a group one by one.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(super()._split_scope(nodeid))
