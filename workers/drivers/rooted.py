"""Files of attempts without a container: every path of the task lies below a folder of its own."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from workers.attempt.engine import Placed


def place_below(root: Path, placed: Sequence[Placed]) -> None:
    """Make `placed` stand below `root`. Repeatable. Raises OSError.

    What is bound stands there as a link, so that it stays where it is, and changes are seen.
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
    """The first bytes of a regular file below `root`; a link is not followed."""
    target = root / path.lstrip("/")
    try:
        with open(os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(limit) if target.is_file() else None
    except OSError:
        return None
