"""Walk through the store in a fixed order: folders of attempts, and incomplete inputs.

The order is that of places, `<area>/<first folder>`. Each is a small part of an area, so a walk can
continue at a place.
"""

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from uuid import UUID

from controlplane.storage.folder.root import root
from controlplane.storage.folder.trash import ARTIFACT_DEPTH, discard, remove_empty
from controlplane.storage.interface import OrphanEntry, OrphanPage

# The number of levels between an area and the folders of its attempts.
_DEPTHS = {"artifacts": ARTIFACT_DEPTH, "drafts": 1, "logs": 1}
_INPUTS = "inputs"
_PART = 200
_FIRST = re.compile(r"[0-9a-z]{2}")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def walk_store(begin: str) -> Iterator[OrphanPage]:
    """Yield the content of the store from the place `begin` on, at least one page per place.

    Skip entries that are removed meanwhile. Raise OSError.
    """
    for area in sorted((*_DEPTHS, _INPUTS)):
        for first in _list(root() / area):
            place = f"{area}/{first.name}"
            if place < begin or not _FIRST.fullmatch(first.name):
                continue
            found = _find(first, area)
            while lying := list(islice(found, _PART)):
                yield OrphanPage(place, lying)
            yield OrphanPage(f"{place}/", ())


def is_older(entry: OrphanEntry, instant: float) -> bool:
    """Return whether nothing of the entry was written since `instant` (s since 1970)."""
    return _is_older(entry.path, instant)


def put_away(entry: OrphanEntry) -> None:
    """Remove the entry; the content of a folder is deleted in steps. Idempotent. Raise OSError."""
    if entry.uid is None:
        entry.path.unlink(missing_ok=True)
        return
    discard(entry.path)
    if root() / "artifacts" in entry.path.parents:
        remove_empty(entry.path)


def _is_older(path: Path, instant: float) -> bool:
    try:
        if path.lstat().st_mtime >= instant:
            return False
        if path.is_symlink() or not path.is_dir():
            return True
        return all(_is_older(inner, instant) for inner in path.iterdir())
    except FileNotFoundError:  # another process is writing it
        return False


def _find(first: Path, area: str) -> Iterator[OrphanEntry]:
    if area == _INPUTS:
        return (OrphanEntry(path) for path in _list(first) if path.name.startswith("."))
    folders = _descend(first, _DEPTHS[area] - 1)
    return (OrphanEntry(path, UUID(path.name)) for path in folders)


def _descend(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of attempts `depth` levels below; skip entries with other names."""
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
