"""Discard folders: move them away at once, and delete their content in steps.

discarded/<random>      a discarded folder with its content
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
    """Whether discarded folders remain. `fault`: why some cannot be deleted."""

    anything: bool
    fault: OSError | None = None


def discard(folder: Path) -> None:
    """Move the folder away in constant time, whatever its size. Idempotent.

    Raise OSError if that is impossible, for example in a read-only store; then nothing has changed.
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
        shutil.rmtree(folder)  # it is on another disk


def delete_discarded(is_over: Callable[[], bool]) -> TrashRemainder:
    """Delete discarded content until `is_over` returns true; return what remains."""
    fault = None
    try:
        with os.scandir(_root()) as folders:
            for folder in folders:
                try:
                    if not _delete(Path(folder), is_over):
                        return TrashRemainder(True, fault)
                except FileNotFoundError:  # another process deletes it
                    continue
                except OSError as error:  # others can be deleted
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
