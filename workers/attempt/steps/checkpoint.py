"""What an attempt leaves in its `checkpoint_path` stands there again when the next one starts.

It is kept at every end but success: of a failure, of a stop, also by preemption. It is not copied
while the program runs: of a folder that changes meanwhile a copy would be worth nothing. So what is
lost with its machine begins where its last attempt that ended elsewhere left off.
"""

from contextlib import suppress
from functools import partial

from controlplane.contract.artifacts import CHECKPOINT
from controlplane.contract.codec import clean_text
from controlplane.contract.messages.reports import MESSAGE_CHARS
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.outcome import INPUTS, OUTPUTS, AttemptFailed, judge_start_error
from workers.attempt.runtime import PlacedFile
from workers.attempt.stage_retry import with_tries
from workers.attempt.steps.inputs import checked_path
from workers.attempt.steps.outputs import save, tried
from workers.attempt.transfer.transfers import DiskAllowance, OutputTransfer, fetch, remember_base

# A stopped attempt keeps its resources until this has ended; 60 s after its grace period the
# control plane would quarantine its cell for a stop that is not confirmed.
KEEP_SECONDS = 40.0


def fetch_checkpoint(attempt: AttemptRun) -> None:
    """Fetch what the last attempt left; note where this one will. Raises AttemptFailed."""
    spec = attempt.launch.spec
    if spec.outputs or spec.checkpoint_path:
        remember_base(attempt)
    if spec.checkpoint_path is None:
        return
    path = checked_path("checkpoint_path", spec.checkpoint_path, INPUTS)
    attempt.placed = [*attempt.placed, PlacedFile(path, writable=True)]
    found = attempt.launch_context.checkpoint
    if found is None:
        return
    room = DiskAllowance("checkpoint", attempt.workspace, attempt.context.max_files_bytes, INPUTS)
    url = str(found.get("url") or found["uri"])

    def fetch_once() -> None:
        tar, sha256 = attempt.workspace / CHECKPOINT, str(found["sha256"])
        try:
            fetch(attempt, "checkpoint", url, tar, room, named="url" not in found, sha256=sha256)
        except AttemptFailed as failure:
            if failure.kind is FailureKind.USER:  # it existed, and was reported
                failure.kind = FailureKind.SYSTEM
            raise

    with_tries(
        "checkpoint",
        fetch_once,
        judge=lambda words, status: AttemptFailed(FailureKind.SYSTEM, INPUTS, words),
        pause=attempt.pause,
        back_off=attempt.context.back_off,
        note=attempt.note_try,
    )


def place_checkpoint(attempt: AttemptRun) -> None:
    """Put it into the created container. Raises AttemptFailed."""
    path, tar = attempt.launch.spec.checkpoint_path, attempt.workspace / CHECKPOINT
    if path is None or attempt.launch_context.checkpoint is None:
        return

    def place() -> None:
        with attempt.turn():
            attempt.engine.restore(attempt.launch, path, tar)

    with_tries(
        "checkpoint",
        place,
        judge=lambda words, status: judge_start_error("checkpoint", words, status),
        pause=attempt.pause,
        back_off=attempt.context.back_off,
        note=attempt.note_try,
    )
    tar.unlink(missing_ok=True)


def keep_checkpoint(attempt: AttemptRun) -> None:
    """Store the content of the folder if that is possible in time; otherwise log it and go on."""
    path = attempt.launch.spec.checkpoint_path
    if path is None or not attempt.is_started:
        return
    keeping = OutputTransfer(attempt, seconds=KEEP_SECONDS, may_break=False)
    tar = attempt.workspace / CHECKPOINT
    most = attempt.context.max_files_bytes
    try:
        save(
            keeping,
            path,
            tar,
            DiskAllowance("checkpoint", attempt.workspace, most, OUTPUTS),
            "checkpoint",
        )
        put = partial(keeping.put, CHECKPOINT, lambda: tar.open("rb"))
        attempt.outputs = (tried(keeping, "checkpoint", put),)
    except DriverClosed:
        raise
    except Exception as failure:  # any error: the end itself is reported
        words = clean_text(getattr(failure, "message", str(failure)), MESSAGE_CHARS)
        attempt.log.warning("checkpoint_lost", error=words)
        attempt.usage["checkpoint_lost"] = words
    finally:
        with suppress(OSError):
            tar.unlink(missing_ok=True)
