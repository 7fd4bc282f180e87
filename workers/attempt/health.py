"""Watches over a service: RUNNING is told when its health check passes, and it ends when it fails.

Before it first passes a check is made every second, or sooner if its interval is shorter. When the
engine does not answer nobody knows how the program is: that counts neither way.
"""

import http.client
import logging
from collections.abc import Callable

from controlplane.contract.health import HealthCheck
from workers.attempt.attempt import Attempt, Closed
from workers.attempt.engine import EngineAway, EngineError

log = logging.getLogger(__name__)
STARTING_SECONDS = 1.0  # the longest pause between checks of what is not RUNNING yet
MAX_BODY = 64 * 1024  # of an answer, before the connection is closed


def watch_health(
    attempt: Attempt, on_healthy: Callable[[Attempt], None], stop: Callable[[], None]
) -> None:
    """Check until the attempt is over. `on_healthy` is called once RUNNING was told."""
    check = attempt.launch.spec.health_check
    assert check is not None
    failures = 0
    try:
        while not attempt.ended and not attempt.around.closed.is_set():
            words = _look(attempt, check)
            if attempt.ended or attempt.around.closed.is_set():
                return
            if words == "" and attempt.started_at is None:
                if not attempt.mark_healthy():
                    return
                on_healthy(attempt)
            failures = failures + 1 if words else (0 if words == "" else failures)
            why = _why_over(attempt, check, failures, words)
            if why is not None:
                attempt.unhealthy = why
                stop()
                return
            is_starting = attempt.started_at is None
            pause = min(check.interval_seconds, STARTING_SECONDS if is_starting else float("inf"))
            attempt.over.wait(pause)
    except Closed:
        return


def _why_over(attempt: Attempt, check: HealthCheck, failures: int, words: str | None) -> str | None:
    """Why it must end after a check that told `words`; None: it may go on."""
    if not words:
        return None
    if attempt.started_at is None:
        waited = attempt.around.now() - attempt.process_started_at
        if waited < check.start_period_seconds:
            return None
        return f"not healthy within {check.start_period_seconds:g} s: {words}"
    if failures < check.retries:
        return None
    times = f"{failures} times in a row" if failures > 1 else "once"
    return f"its health check failed {times}: {words}"


def _look(attempt: Attempt, check: HealthCheck) -> str | None:
    """Empty: it passed; else why not; None: nobody can tell."""
    if check.command:
        try:
            return attempt.engine.check(attempt.launch, check.command, check.timeout_seconds)
        except EngineAway:
            return None
        except EngineError as error:
            return str(error) or "the engine refused it"
    address = (attempt.addresses or {}).get(check.port or "")
    if address is None:
        return f"port {check.port} is not published"
    return get(address, check.path, check.timeout_seconds)


def get(address: str, path: str, seconds: float) -> str:
    """Empty if a GET there is answered with a status from 200 to 399, else what came instead."""
    connection = http.client.HTTPConnection(address, timeout=seconds)
    try:
        connection.request("GET", path, headers={"User-Agent": "cellrun-health-check"})
        answer = connection.getresponse()
        answer.read(MAX_BODY)
    except (OSError, http.client.HTTPException) as error:
        return f"GET {path}: {str(error) or type(error).__name__}"
    finally:
        connection.close()
    return "" if 200 <= answer.status < 400 else f"GET {path}: HTTP status {answer.status}"
