"""Discard folders: move them away at once, and delete their content in steps.

discarded/<random>      a discarded folder with its content
"""

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID, uuid4

from controlplane.storage.folder.root import root
from controlplane.storage.interface import TrashRemainder, drafts_of, logs_of

# The number of levels between `artifacts` and the folders of its attempts.
ARTIFACT_DEPTH = 5


def discard_attempts(prefixes: Mapping[UUID, str]) -> dict[UUID, OSError]:
    """Move artifacts and output of attempts away; return the errors by uid. Idempotent."""
    failed = {}
    for uid, prefix in prefixes.items():
        try:
            artifacts = root() / "artifacts" / prefix
            for folder in (artifacts, root() / drafts_of(uid), root() / logs_of(uid)):
                discard(folder)
            remove_empty(artifacts)
        except OSError as error:
            failed[uid] = error
    return failed


def remove_empty(artifacts: Path) -> None:
    """Remove the folders of the task, job, … of an attempt's artifacts, if they are empty."""
    for folder in list(artifacts.parents)[:ARTIFACT_DEPTH]:
        try:
            folder.rmdir()
        except OSError:
            return


def discard(folder: Path) -> None:
    """Move the folder away in constant time, whatever its size. Idempotent.

    Raise OSError if that is impossible, for example in a read-only store; then nothing has changed.
    """
    if not folder.is_dir():
        return
    away = _folder() / uuid4().hex
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
        with os.scandir(_folder()) as folders:
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


def _folder() -> Path:
    return root() / "discarded"
