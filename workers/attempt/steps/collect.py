"""Collect from an ended process: the rest of its output, and the head of its result file."""

from controlplane.contract.messages.reports import RESULT_BYTES, head_of_result
from workers.attempt.attempt import AttemptRun
from workers.attempt.capture import Capture, CaptureSuperseded, DiskFull
from workers.attempt.runtime import EngineAway, EngineError, NoSuchContainer
from workers.attempt.steps.inspect_container import RETRY_SECONDS

FLUSH_SECONDS = 5.0  # how long an end waits for its output; the rest is uploaded later


def collect_output(attempt: AttemptRun) -> None:
    """Copy the remaining output, then upload it, for a bounded time."""
    if attempt.capture is not None and not attempt.capture.is_over:
        _copy_rest(attempt, attempt.capture)
    attempt.context.shipper.finish(attempt.uid, FLUSH_SECONDS)


def _copy_rest(attempt: AttemptRun, capture: Capture) -> None:
    """Copy the remaining output; wait a limited time for an engine that restarts."""
    for seconds in (*RETRY_SECONDS, 0.0):
        try:
            attempt.engine.copy_logs(attempt.uid, capture, follow=False)
            return
        except CaptureSuperseded:
            return
        except (EngineError, DiskFull) as error:
            attempt.log.warning("output_not_read", error=str(error))
            return
        except EngineAway as error:
            attempt.log.warning("output_not_read", error=str(error))
            attempt.rest(seconds)


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
