"""Store the folder `checkpoint_path` of an attempt, and restore it for the next attempt.

It is stored at every end except success: after a failure or a stop, including preemption. It is not
copied while the program runs, because a copy of a changing folder would be inconsistent. So after
the loss of a machine, the next attempt starts from the checkpoint of an earlier attempt.
"""

from contextlib import suppress
from functools import partial

from controlplane.contract.artifacts import CHECKPOINT
from controlplane.contract.codec import clean_text
from controlplane.contract.messages.reports import MESSAGE_CHARS
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.outcome import INPUTS, OUTPUTS, AttemptFailed
from workers.attempt.runtime import PlacedFile
from workers.attempt.stage_retry import system_failure, with_tries
from workers.attempt.steps.inputs import checked_path
from workers.attempt.steps.outputs import keep_outputs_of_failure, save, with_output_tries
from workers.attempt.transfer.tars import check_plain
from workers.attempt.transfer.transfers import (
    DiskAllowance,
    OutputTransfer,
    fetch,
    save_output_base,
)

# A stopped attempt holds its resources meanwhile. 60 s after the grace period the control plane
# would quarantine the cell for an unconfirmed stop.
KEEP_SECONDS = 40.0


def fetch_checkpoint(attempt: AttemptRun) -> None:
    """Fetch the last checkpoint; record the output base of this attempt. Raise AttemptFailed."""
    spec = attempt.launch.spec
    if spec.outputs or spec.checkpoint_path:
        save_output_base(attempt)
    if spec.checkpoint_path is None:
        return
    path = checked_path("checkpoint_path", spec.checkpoint_path, INPUTS)
    attempt.placed = [*attempt.placed, PlacedFile(path, writable=True)]
    found = attempt.launch_context.checkpoint
    if found is None:
        return
    allowance = DiskAllowance(
        "checkpoint", attempt.workspace, attempt.context.max_files_bytes, INPUTS
    )
    url = str(found.get("url") or found["uri"])

    def fetch_once() -> None:
        tar, sha256 = attempt.workspace / CHECKPOINT, str(found["sha256"])
        try:
            fetch(
                attempt, "checkpoint", url, tar, allowance, named="url" not in found, sha256=sha256
            )
        except AttemptFailed as failure:
            if failure.kind is FailureKind.USER:  # the checkpoint was stored, so it must exist
                failure.kind = FailureKind.SYSTEM
            raise

    with_tries(attempt, "checkpoint", fetch_once, system_failure(INPUTS))


def place_checkpoint(attempt: AttemptRun) -> None:
    """Restore the checkpoint in the created container. Raise AttemptFailed."""
    path, tar = attempt.launch.spec.checkpoint_path, attempt.workspace / CHECKPOINT
    if path is None or attempt.launch_context.checkpoint is None:
        return

    def place() -> None:
        with attempt.turn():
            check_plain(tar)
            attempt.engine.restore(attempt.launch, path, tar)

    with_tries(attempt, "checkpoint", place)
    tar.unlink(missing_ok=True)


def keep_leftovers(attempt: AttemptRun) -> None:
    """Store checkpoint and outputs with `keep_on_failure` of an unsuccessful attempt, if possible.

    What is not stored within `KEEP_SECONDS` is lost; `usage` names it.
    """
    spec = attempt.launch.spec
    if not attempt.is_started:
        return
    transfer = OutputTransfer(attempt, seconds=KEEP_SECONDS, may_break=False)
    if spec.checkpoint_path is not None:
        with attempt.step("checkpoint"):
            _keep_checkpoint(transfer, spec.checkpoint_path)
    if any(output.keep_on_failure for output in spec.outputs):
        with attempt.step("outputs"):
            keep_outputs_of_failure(transfer)


def _keep_checkpoint(transfer: OutputTransfer, path: str) -> None:
    """Store the content of the folder; log an error and go on."""
    attempt = transfer.attempt
    tar = attempt.workspace / CHECKPOINT
    limit = attempt.context.max_files_bytes
    try:
        allowance = DiskAllowance("checkpoint", attempt.workspace, limit, OUTPUTS)
        save(transfer, path, tar, allowance, "checkpoint")
        put = partial(transfer.put, CHECKPOINT, lambda: tar.open("rb"))
        attempt.outputs = (with_output_tries(transfer, "checkpoint", put),)
    except DriverClosed:
        raise
    except Exception as failure:  # any error: the end itself is reported
        text = clean_text(getattr(failure, "message", str(failure)), MESSAGE_CHARS)
        attempt.log.warning("checkpoint_lost", error=text)
        attempt.usage["checkpoint_lost"] = text
    finally:
        with suppress(OSError):
            tar.unlink(missing_ok=True)
