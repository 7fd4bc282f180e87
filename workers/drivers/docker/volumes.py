"""Anonymous volumes, which the engine makes for each VOLUME of an image: part of a task's disk."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workers.attempt.disk import bytes_below


def volume_bytes(api: Any, mounts: Iterable[Mapping[str, Any]]) -> int:
    """The sizes of the volumes among the mounts of an inspected container.

    Cellrun mounts none, so all are anonymous. The cell reads them itself where it may. If any of
    their folders is closed to it, it asks the engine, which then sizes all its volumes: only for
    tasks with such an image and a limit.
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
    """The size of what is below `source`; None if the cell cannot see all of it."""
    denied: list[OSError] = []

    def note(error: OSError) -> None:
        if isinstance(error, PermissionError):
            denied.append(error)

    if not source.is_absolute() or not os.access(source, os.R_OK | os.X_OK):
        return None
    size = bytes_below(source, on_error=note)
    return None if denied else size
