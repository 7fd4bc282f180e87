"""Clean up after an attempt: its processes, and on request its container."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from uuid import uuid4

import structlog

from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.runtime import ContainerStatus, Engine, EngineAway, EngineError
from workers.attempt.steps.inspect_container import RETRY_SECONDS, inspect_container

log = structlog.get_logger(__name__)


def ensure_ended(attempt: AttemptRun) -> None:
    """Return only when no process of this attempt runs or can start, however long it takes."""
    tries = 0
    while attempt.may_exist:
        try:
            view = inspect_container(attempt)
            if view is None or view.status is ContainerStatus.ENDED:
                return
            attempt.engine.remove(attempt.uid)
            return
        except DriverClosed:
            raise
        except Exception as error:  # also unexpected errors: otherwise no end is reported
            attempt.log.warning("container_not_removed", error=str(error))
            attempt.rest(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1


def delete_folder(folder: Path) -> None:
    """Delete a folder and its content as far as possible; fast if there are only empty folders."""
    with suppress(FileNotFoundError):
        try:
            for entry in os.listdir(folder):
                os.rmdir(folder / entry)
            folder.rmdir()
        except OSError:
            with suppress(OSError):
                _delete_content(folder)
                folder.rmdir()


def _delete_content(folder: Path) -> None:
    """Delete what a task left, without a frame or a descriptor for each level, or a long path.

    Each folder is moved up before it is emptied, because a task nests folders as deep as it likes.
    """
    unique, numbers = uuid4().hex, count()
    with _opened(folder) as top:
        waiting = os.listdir(top)
        while waiting:
            name = waiting.pop()
            with suppress(OSError):
                if _is_deleted(name, top):
                    continue
                with _opened(name, top) as inner:
                    for child in os.listdir(inner):
                        with suppress(OSError):
                            if not _is_deleted(child, inner):
                                moved = f"{unique}-{next(numbers)}"
                                os.rename(child, moved, src_dir_fd=inner, dst_dir_fd=top)
                                waiting.append(moved)
                os.rmdir(name, dir_fd=top)


@contextmanager
def _opened(folder: Path | str, above: int | None = None) -> Iterator[int]:
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    try:
        yield found
    finally:
        os.close(found)


def _is_deleted(name: str, folder: int) -> bool:
    """Delete a file or an empty folder; return False for a folder with content. Raise OSError."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
    return True


def remove_all(engine: Engine, uid: str, workspace: Path, pause: Callable[[float], bool]) -> bool:
    """Delete container and workspace; return whether a try succeeded. `pause` may end the tries."""
    for seconds in (*RETRY_SECONDS, 0.0):
        try:
            engine.remove(uid)
            delete_folder(workspace)
            return True
        except (EngineAway, EngineError) as error:
            log.warning("container_not_removed", attempt=uid, error=str(error))
        if pause(seconds):
            break
    return False
