"""The attempt waits for its process, through a restart of the engine, while its output is kept."""

import threading

from workers.attempt.attempt import Attempt, Closed
from workers.attempt.capture import Capture, Superseded
from workers.attempt.engine import EngineAway, EngineError, Life, NoSuchContainer, View
from workers.attempt.steps.look import PATIENCE_SECONDS, look

SHORT_SECONDS = 0.5  # a process that ends sooner has its output read once, at its end
LONG_SECONDS = 30.0  # then look again: an engine may forget a waiter
FOLLOWER_SECONDS = 2.0  # for the follower to see the end of the output by itself


def wait_for_end(attempt: Attempt) -> View | None:
    """The ended container; None: it vanished."""
    follower: threading.Thread | None = None
    seconds = SHORT_SECONDS
    tries = 0
    while True:
        try:
            over = attempt.engine.wait(attempt.uid, seconds)
            tries = 0
        except NoSuchContainer:
            over = True
        except (EngineAway, EngineError):
            over = True
            attempt.rest(PATIENCE_SECONDS[min(tries, len(PATIENCE_SECONDS) - 1)])
            tries += 1
        attempt.rest(0)
        if over:
            view = look(attempt)
            if view is None or view.life is Life.ENDED:
                break
        if follower is None and attempt.capture is not None:
            follower = _follow(attempt, attempt.capture)
        seconds = LONG_SECONDS
    attempt.mark_ended()
    if follower is not None:
        follower.join(FOLLOWER_SECONDS)
    return view


def _follow(attempt: Attempt, capture: Capture) -> threading.Thread:
    """Copy the output as it comes, in a thread of its own."""

    def follow() -> None:
        while not (attempt.ended or attempt.around.closed.is_set() or capture.is_over):
            try:
                attempt.engine.copy_logs(attempt.uid, capture, follow=True)
            except (Superseded, Closed):
                return
            except (EngineAway, EngineError):
                pass
            # An end of the stream that is not the container's: the engine restarted, or hung up.
            attempt.around.closed.wait(PATIENCE_SECONDS[0] if not attempt.ended else 0)

    thread = threading.Thread(target=follow, name=f"logs-{attempt.uid}", daemon=True)
    thread.start()
    return thread
