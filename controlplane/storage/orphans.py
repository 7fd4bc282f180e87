"""The content of the store in a fixed order: folders of attempts, and incomplete inputs.

The order is that of places, `<area>/<first folder>`: each is a small part of an area, so a walk can
continue at a place.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from uuid import UUID

from django.conf import settings

from controlplane.storage.trash import discard

# How many folders stand between an area and the folders of its attempts.
_DEPTHS = {"artifacts": 5, "drafts": 1, "logs": 1}
_INPUTS = "inputs"
_PART = 200
_FIRST = re.compile(r"[0-9a-z]{2}")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class OrphanEntry:
    """A folder of the attempt `uid`, or (it is empty) a file that was to become an input."""

    path: Path
    uid: UUID | None = None


@dataclass(frozen=True, slots=True)
class OrphanPage:
    """Up to 200 of the folders or files of a place. `then`: where another walk continues.

    That is the same place, and the next one once all of it was read.
    """

    then: str
    lying: Sequence[OrphanEntry]


def walk_store(begin: str) -> Iterator[OrphanPage]:
    """All that lies in the store from the place `begin` on; at least one part for each place.

    What goes meanwhile is left out. Raises OSError.
    """
    for area in sorted((*_DEPTHS, _INPUTS)):
        for first in _list(_root() / area):
            place = f"{area}/{first.name}"
            if place < begin or not _FIRST.fullmatch(first.name):
                continue
            found = _find(first, area)
            while lying := list(islice(found, _PART)):
                yield OrphanPage(place, lying)
            yield OrphanPage(f"{place}/", ())


def is_older(path: Path, instant: float) -> bool:
    """Whether nothing at or below `path` was written since `instant`, in seconds since 1970."""
    try:
        if path.lstat().st_mtime >= instant:
            return False
        if path.is_symlink() or not path.is_dir():
            return True
        return all(is_older(inner, instant) for inner in path.iterdir())
    except FileNotFoundError:  # another process is writing it
        return False


def put_away(lying: OrphanEntry) -> None:
    """Hide the folder; its content is deleted bit by bit. Repeatable. Raise OSError."""
    if lying.uid is None:
        lying.path.unlink(missing_ok=True)
        return
    discard(lying.path)
    # The folders of its task, job, …: they go with what was last in them.
    if _root() / "artifacts" in lying.path.parents:
        for folder in list(lying.path.parents)[: _DEPTHS["artifacts"]]:
            try:
                folder.rmdir()
            except OSError:
                return


def _find(first: Path, area: str) -> Iterator[OrphanEntry]:
    if area == _INPUTS:
        return (OrphanEntry(path) for path in _list(first) if path.name.startswith("."))
    folders = _descend(first, _DEPTHS[area] - 1)
    return (OrphanEntry(path, UUID(path.name)) for path in folders)


def _descend(folder: Path, depth: int) -> Iterator[Path]:
    """Folders of attempts, so far below; what is called otherwise is none of ours."""
    for path in _list(folder):
        if depth:
            yield from _descend(path, depth - 1)
        elif _UID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path


def _list(folder: Path) -> list[Path]:
    if folder.is_symlink():
        return []
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _root() -> Path:
    root: Path = settings.CELLRUN.artifact_root
    return root
