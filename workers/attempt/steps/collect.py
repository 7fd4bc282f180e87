"""Collect from an ended process: the rest of its output, and the head of its result file.

A stream with a file is written there first, as far as the cell has kept it.
"""

from functools import partial

from controlplane.contract.messages.reports import RESULT_BYTES, head_of_result
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.capture import (
    INCOMPLETE,
    STREAMS,
    Capture,
    CaptureSuperseded,
    DiskFull,
)
from workers.attempt.outcome import OUTPUTS, VANISHED, AttemptFailed
from workers.attempt.runtime import EngineAway, EngineError, NoSuchContainer
from workers.attempt.stage_retry import with_tries
from workers.attempt.steps.inspect_container import RETRY_SECONDS

FLUSH_SECONDS = 5.0  # how long an end waits for its output; the rest is uploaded later


def collect_output(attempt: AttemptRun) -> None:
    """Copy the remaining output, then upload it, for a bounded time."""
    if attempt.capture is not None and not attempt.capture.is_over:
        attempt.has_whole_output = _copy_rest(attempt, attempt.capture)
    attempt.context.shipper.finish(attempt.uid, FLUSH_SECONDS)


def _copy_rest(attempt: AttemptRun, capture: Capture) -> bool:
    """Copy the remaining output, if the engine returns to work soon; return whether it is whole."""
    for seconds in (*RETRY_SECONDS, 0.0):
        try:
            attempt.engine.copy_logs(attempt.uid, capture, follow=False)
            return True
        except (CaptureSuperseded, EngineError, DiskFull) as error:
            attempt.log.warning("output_not_read", error=str(error))
            return False
        except EngineAway as error:
            attempt.log.warning("output_not_read", error=str(error))
            attempt.rest(seconds)
    return False


def write_streams(attempt: AttemptRun, *, is_success: bool) -> None:
    """Write the output to the files that the task names for it.

    Raise AttemptFailed after a success; otherwise note the error in the usage.
    """
    try:
        for name in STREAMS:
            path = getattr(attempt.launch.spec, name)
            if path is not None:
                with_tries(
                    attempt,
                    name,
                    partial(_write_stream, attempt, name, path),
                    partial(_stream_failure, name),
                    pause=attempt.rest,
                )
                _check_whole(attempt, name)
    except AttemptFailed as failure:
        if is_success:
            failure.exit_code = 0
            raise
        attempt.note_lost(failure.message)


def _write_stream(attempt: AttemptRun, name: str, path: str) -> None:
    source = attempt.log_folder / name
    if not source.exists():  # a process that wrote nothing
        source = attempt.workspace / "empty"
        source.touch()
    attempt.engine.write(attempt.launch, path, source)


def _stream_failure(name: str, text: str, status: int | None) -> AttemptFailed:
    if status == 404:
        return AttemptFailed(FailureKind.OUTSIDE, VANISHED, f"{name}: its container is gone")
    # The program has put a folder at the path, or a file in place of a folder above it.
    is_bad_path = status == 400 or "not a directory" in text
    kind = FailureKind.USER if is_bad_path else FailureKind.SYSTEM
    return AttemptFailed(kind, OUTPUTS, f"{name}: {text}")


def _check_whole(attempt: AttemptRun, name: str) -> None:
    """Raise AttemptFailed if the cell did not keep the whole stream."""
    path, limit = attempt.log_folder / name, attempt.context.max_log_bytes
    if path.exists() and path.stat().st_size > limit:
        text = f"{name}: longer than the {limit} bytes of output that this cell keeps: write it to"
        raise AttemptFailed(FailureKind.USER, OUTPUTS, f"{text} a file in the program")
    if not attempt.has_whole_output or (attempt.log_folder / INCOMPLETE).exists():
        text = f"{name}: the cell could not keep all of the output"
        raise AttemptFailed(FailureKind.SYSTEM, OUTPUTS, text)


def collect_result(attempt: AttemptRun) -> tuple[str | None, bool]:
    """Return the first 10,240 bytes of the result file as text, and whether it was longer."""
    path = attempt.launch.spec.result_file
    if path is None:
        return None, False
    content = _read(attempt, path)
    return (None, False) if content is None else head_of_result(content)


def _read(attempt: AttemptRun, path: str) -> bytes | None:
    for seconds in (*RETRY_SECONDS, 0.0):
        try:
            return attempt.engine.read_head(attempt.launch, path, RESULT_BYTES + 1)
        except NoSuchContainer:
            return None
        except (EngineAway, EngineError) as error:
            attempt.log.warning("result_not_read", error=str(error))
            attempt.rest(seconds)
    return None
