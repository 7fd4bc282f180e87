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
from workers.attempt.outcome import INPUTS, OUTPUTS, AttemptFailed
from workers.attempt.runtime import PlacedFile
from workers.attempt.stage_retry import system_failure, with_tries
from workers.attempt.steps.inputs import checked_path
from workers.attempt.steps.outputs import keep_outputs_of_failure, save, tried
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
    room = DiskAllowance("checkpoint", attempt.workspace, attempt.around.max_files_bytes, INPUTS)
    url = str(found.get("url") or found["uri"])

    def fetch_once() -> None:
        tar, sha256 = attempt.workspace / CHECKPOINT, str(found["sha256"])
        try:
            fetch(attempt, "checkpoint", url, tar, room, named="url" not in found, sha256=sha256)
        except AttemptFailed as failure:
            if failure.kind is FailureKind.USER:  # it existed, and was reported
                failure.kind = FailureKind.SYSTEM
            raise

    with_tries(attempt, "checkpoint", fetch_once, system_failure(INPUTS))


def place_checkpoint(attempt: AttemptRun) -> None:
    """Put it into the created container. Raises AttemptFailed."""
    path, tar = attempt.launch.spec.checkpoint_path, attempt.workspace / CHECKPOINT
    if path is None or attempt.launch_context.checkpoint is None:
        return

    def place() -> None:
        with attempt.turn():
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
    keeping = OutputTransfer(attempt, seconds=KEEP_SECONDS, may_break=False)
    if spec.checkpoint_path is not None:
        with attempt.step("checkpoint"):
            _keep_checkpoint(keeping, spec.checkpoint_path)
    if any(output.keep_on_failure for output in spec.outputs):
        with attempt.step("outputs"):
            keep_outputs_of_failure(keeping)


def _keep_checkpoint(keeping: OutputTransfer, path: str) -> None:
    """Store the content of the folder; log an error and go on."""
    attempt = keeping.attempt
    tar = attempt.workspace / CHECKPOINT
    most = attempt.around.max_files_bytes
    try:
        room = DiskAllowance("checkpoint", attempt.workspace, most, OUTPUTS)
        save(keeping, path, tar, room, "checkpoint")
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
