"""Files of attempts without a container: all paths of the task are below the attempt's folder."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from workers.attempt.runtime import EngineError, PlacedFile
from workers.attempt.transfer.tars import Take, pack, unpack


def place_below(root: Path, placed: Sequence[PlacedFile]) -> None:
    """Place `placed` below `root`. Repeatable. Raise OSError.

    A bound path becomes a link, so that its source can change.
    """
    for item in placed:
        target = root / item.path.lstrip("/")
        folder = target if item.source is None else target.parent
        folder.mkdir(parents=True, exist_ok=True)
        if item.source is None:
            continue
        if target.is_symlink():
            target.unlink()
        if item.bound:
            target.symlink_to(item.source.absolute())
        else:
            shutil.copyfile(item.source, target)


def read_head_below(root: Path, path: str, limit: int) -> bytes | None:
    """Return the first bytes of a regular file below `root`; do not follow links."""
    target = root / path.lstrip("/")
    try:
        with open(os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = Path(f"/proc/self/fd/{file.fileno()}")
            is_inside = Path(os.path.realpath(found)).is_relative_to(os.path.realpath(root))
            return file.read(limit) if found.is_file() and is_inside else None
    except OSError:
        return None


def save_below(root: Path, path: str, target: Path, take: Take) -> bool:
    """Pack the file or folder at `path` below `root` into `target`.

    Return False if it does not exist, or a link leads out of `root`.
    """
    source = root / path.strip("/")
    real = Path(os.path.realpath(source))
    if not real.is_relative_to(os.path.realpath(root)) or not os.path.lexists(source):
        return False
    try:
        pack(source, target, take)
    except OSError as error:
        raise EngineError(str(error)) from error
    return True


def restore_below(root: Path, path: str, source: Path) -> None:
    """Unpack `source` at `path` below `root`."""
    folder = root / path.strip("/")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unpack(source, folder)
    except OSError as error:
        raise EngineError(str(error)) from error
