"""Folders that are not needed any more: moved away at once, and deleted in steps afterwards.

discarded/<random>      a folder with all that was in it
"""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from django.conf import settings


@dataclass(frozen=True, slots=True)
class TrashRemainder:
    """What is left of the discarded. `fault`: why some of it cannot be deleted."""

    anything: bool
    fault: OSError | None = None


def discard(folder: Path) -> None:
    """Hide the folder in constant time, however large it is. Repeatable.

    Raise OSError if that is impossible, as on a read-only store: then nothing has changed.
    """
    if not folder.is_dir():
        return
    away = _root() / uuid4().hex
    away.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(folder, away)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.rmtree(folder)  # it lies on another disk


def delete_discarded(is_over: Callable[[], bool]) -> TrashRemainder:
    """Delete what was discarded, until time `is_over`; what is left of it."""
    fault = None
    try:
        with os.scandir(_root()) as folders:
            for folder in folders:
                try:
                    if not _delete(Path(folder), is_over):
                        return TrashRemainder(True, fault)
                except FileNotFoundError:  # another process is at it
                    continue
                except OSError as error:  # others may go
                    fault = error
    except FileNotFoundError:
        return TrashRemainder(False)
    except OSError as error:
        return TrashRemainder(True, error)
    return TrashRemainder(fault is not None, fault)


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
