"""Create the attempt's folder under the cell's home, and its log folder.

While the file `uncreated` exists in the folder and names this boot of the machine, no creation of a
container was begun: the file is removed just before. After a power cut the file may reappear, so it
counts only in its own boot.
"""

import errno
import os
from functools import lru_cache
from pathlib import Path

from controlplane.contract.states import FailureKind
from workers import clock
from workers.attempt.attempt import AttemptRun
from workers.attempt.capture import Capture
from workers.attempt.outcome import DISK, ENGINE, AttemptFailed


def check_begun(attempt: AttemptRun) -> None:
    """Read from the files of an earlier process whether a container may exist."""
    attempt.begun_before = attempt.is_adopted or attempt.workspace.exists()
    attempt.is_uncreated = not attempt.begun_before or _names_this_boot(_uncreated_file(attempt))
    attempt.may_exist = not attempt.is_uncreated
    if attempt.begun_before:
        attempt.recall_limit()


def begin_creation(attempt: AttemptRun) -> None:
    """Record that a container may exist from now on, even if this process ends."""
    attempt.may_exist = True
    _uncreated_file(attempt).unlink(missing_ok=True)


def make_workspace(attempt: AttemptRun) -> None:
    """Create the folders. Raise AttemptFailed."""
    try:
        # Creating folders and files takes half of the time of a short task.
        needed = attempt.inputs_folder if attempt.launch.spec.inputs else attempt.workspace
        needed.mkdir(parents=True, exist_ok=True)
        if attempt.engine.name != "process":  # created there with the first output
            attempt.log_folder.mkdir(parents=True, exist_ok=True)
        if not attempt.begun_before:
            _write_uncreated_file(attempt)
        if attempt.engine.keeps_logs:
            attempt.capture = Capture(attempt.log_folder, attempt.context.max_log_bytes)
    except OSError as error:
        reason = DISK if error.errno in (errno.ENOSPC, errno.EDQUOT) else ENGINE
        raise AttemptFailed(FailureKind.SYSTEM, reason, f"workspace: {error}") from error
    attempt.context.shipper.watch(attempt.uid, attempt.log_folder)


def _uncreated_file(attempt: AttemptRun) -> Path:
    return attempt.workspace / "uncreated"


def _write_uncreated_file(attempt: AttemptRun) -> None:
    """Link the file that names this boot, or write a copy if the file system has no links."""
    try:
        os.link(_boot_file(attempt.context.home), _uncreated_file(attempt))
    except OSError:
        _uncreated_file(attempt).write_text(clock.boot_id(), encoding="ascii")


@lru_cache(maxsize=8)
def _boot_file(home: Path) -> Path:
    """Return the file that names this boot; each process of the cell writes it again."""
    path, new = home / "boot", home / "boot.new"
    new.write_text(clock.boot_id(), encoding="ascii")
    new.replace(path)
    return path


def _names_this_boot(path: Path) -> bool:
    try:
        boot = path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return False
    return boot != "" and boot == clock.boot_id()
