"""The attempt gets a folder of its own under the cell's home, and its output a place."""

import errno

from controlplane.contract.states import FailureKind
from workers.attempt.attempt import Attempt
from workers.attempt.capture import Capture
from workers.attempt.outcome import DISK, ENGINE, AttemptFailed


def make_workspace(attempt: Attempt) -> None:
    """Make the folders. One that exists already says that this attempt was begun before."""
    try:
        attempt.begun_before = attempt.workspace.exists()
        attempt.inputs_folder.mkdir(parents=True, exist_ok=True)
        attempt.log_folder.mkdir(parents=True, exist_ok=True)
        if attempt.engine.keeps_logs:
            attempt.capture = Capture(attempt.log_folder, attempt.around.max_log_bytes)
    except OSError as error:
        reason = DISK if error.errno in (errno.ENOSPC, errno.EDQUOT) else ENGINE
        raise AttemptFailed(FailureKind.SYSTEM, reason, f"workspace: {error}") from error
    attempt.around.shipper.watch(attempt.uid, attempt.log_folder)
