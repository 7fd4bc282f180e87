"""Sizes of anonymous volumes, which the engine creates for each VOLUME of an image."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workers.attempt.disk import bytes_below


def volume_bytes(api: Any, mounts: Iterable[Mapping[str, Any]]) -> int:
    """Return the total size of the volumes among the mounts of an inspected container.

    Cellrun mounts no volumes, so all are anonymous. The cell reads readable ones itself. For the
    others it calls the engine, which then measures all its volumes; this is slow, and happens only
    for tasks with such an image and a disk limit.
    """
    total, unreadable = 0, set()
    for mount in mounts:
        if mount.get("Type") != "volume":
            continue
        size = _readable_bytes(Path(mount.get("Source") or "/nonexistent"))
        if size is None:
            unreadable.add(mount.get("Name"))
        else:
            total += size
    if unreadable:
        for volume in api.df().get("Volumes") or ():
            if volume.get("Name") in unreadable:
                total += max(int((volume.get("UsageData") or {}).get("Size") or 0), 0)
    return total


def _readable_bytes(source: Path) -> int | None:
    """Return the size of all files below `source`; None if the cell cannot read all of it."""
    denied: list[OSError] = []

    def note(error: OSError) -> None:
        if isinstance(error, PermissionError):
            denied.append(error)

    if not source.is_absolute() or not os.access(source, os.R_OK | os.X_OK):
        return None
    size = bytes_below(source, on_error=note)
    return None if denied else size
