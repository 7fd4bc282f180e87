"""Wait for the end of the process, also across restarts of the engine, and copy its output."""

import threading
from dataclasses import replace

from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.capture import Capture, CaptureSuperseded, DiskFull
from workers.attempt.outcome import SIGKILLED, SIGTERMED
from workers.attempt.runtime import (
    ContainerStatus,
    ContainerView,
    EngineAway,
    EngineError,
    NoSuchContainer,
)
from workers.attempt.steps.inspect_container import RETRY_SECONDS, inspect_with_retries

SHORT_SECONDS = 0.5  # the output of a process that ends sooner is read once, at its end
LONG_SECONDS = 30.0  # between inspections: an engine may lose a waiting call
# An engine may record the cause of an end after the end.
LATE_POLL_SECONDS = (0.05, 0.15, 0.3, 0.5)
FOLLOWER_SECONDS = 2.0  # for the follower to reach the end of the output


def wait_for_end(attempt: AttemptRun) -> ContainerView | None:
    """Wait for the end, and return the ended container; None: it vanished."""
    follower: threading.Thread | None = None
    seconds = SHORT_SECONDS
    tries = 0
    was_away = False
    while True:
        try:
            over = attempt.engine.wait(attempt.uid, seconds)
            tries = 0
        except NoSuchContainer:
            over = True
        except (EngineAway, EngineError):
            over = was_away = True
            attempt.rest(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1
        attempt.rest(0)
        if over:
            view, was_unavailable = inspect_with_retries(attempt)
            was_away = was_away or was_unavailable
            if view is None or view.status is ContainerStatus.ENDED:
                break
        if follower is None and attempt.capture is not None:
            follower = _follow(attempt, attempt.capture)
        seconds = LONG_SECONDS
    attempt.mark_ended()
    if follower is not None:
        follower.join(FOLLOWER_SECONDS)
    if view is None or not view.exit_code or attempt.stopped_for is not None:
        return view
    # An engine without live-restore stops all containers when it stops, and does not record that.
    ended_with_engine = was_away and view.exit_code == SIGTERMED
    view = replace(view, stopped=ended_with_engine or _was_stopped(attempt, view))
    if view.exit_code == SIGKILLED and not view.stopped and not view.out_of_memory:
        return replace(view, out_of_memory=_was_oom_recorded_late(attempt))
    return view


def _was_oom_recorded_late(attempt: AttemptRun) -> bool:
    """Return whether the engine records an out-of-memory kill soon after the end."""
    if not attempt.launch.spec.resources.get("memory_mib"):
        return False
    for seconds in LATE_POLL_SECONDS:
        attempt.rest(seconds)
        try:
            view = attempt.engine.view(attempt.uid)
        except (EngineAway, EngineError):
            continue
        if view is None or view.out_of_memory:
            return view is not None
    return False


def _was_stopped(attempt: AttemptRun, view: ContainerView) -> bool:
    try:
        return attempt.engine.was_stopped(attempt.launch, view)
    except EngineAway:
        return view.exit_code == SIGTERMED  # the engine is stopping, with all its containers
    except EngineError as error:
        attempt.log.info("cause_of_end_unknown", error=str(error))
        return False


def _follow(attempt: AttemptRun, capture: Capture) -> threading.Thread:
    """Copy the output continuously in a thread."""

    def follow() -> None:
        while not (attempt.ended or attempt.context.closed.is_set() or capture.is_over):
            try:
                attempt.engine.copy_logs(attempt.uid, capture, follow=True)
            except (CaptureSuperseded, DriverClosed):
                return
            except (EngineAway, EngineError, DiskFull):
                pass
            # The stream ended before the container: the engine restarted, or closed the connection.
            attempt.context.closed.wait(RETRY_SECONDS[0] if not attempt.ended else 0)

    thread = threading.Thread(target=follow, name=f"logs-{attempt.uid}", daemon=True)
    thread.start()
    return thread
