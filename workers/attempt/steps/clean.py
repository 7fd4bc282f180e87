"""Clean up after an attempt: its processes, and on request its container."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

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
    """Delete a folder and its content as far as possible; fast if there are only folders."""
    try:
        _delete_empty(str(folder))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _delete_empty(folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                raise NotADirectoryError(entry.path)
            _delete_empty(entry.path)
    os.rmdir(folder)


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
