"""Folders that nobody needs any more: out of the way at once, and deleted bit by bit afterwards.

discarded/<random>      a folder with all that was in it
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from django.conf import settings


def discard(folder: Path) -> None:
    """Nobody finds the folder any more, and it takes no time, however much it has. Repeatable."""
    away = _root() / uuid4().hex
    if not folder.is_dir():
        return
    away.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(folder, away)
    except FileNotFoundError:
        return
    except OSError:  # it lies on another disk
        shutil.rmtree(folder, ignore_errors=True)


def delete_discarded(is_over: Callable[[], bool]) -> bool:
    """Delete what was discarded, until time `is_over`; whether nothing is left of it."""
    try:
        folders = sorted(_root().iterdir())
    except FileNotFoundError:
        return True
    gone = True
    for folder in folders:
        try:
            gone &= _delete(folder, is_over)
        except OSError:  # another tick is at it, or it may not be deleted; others may
            gone = False
    return gone


def _delete(folder: Path, is_over: Callable[[], bool]) -> bool:
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_over():
                return False
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry)
            elif not _delete(Path(entry), is_over):
                return False
    os.rmdir(folder)
    return True


def _root() -> Path:
    root: Path = settings.CELLRUN.artifact_root / "discarded"
    return root
