"""Health checks of a service: RUNNING is reported when the check passes; failures end the attempt.

Before the first success it runs every second, or at its interval if that is shorter. A check that
the engine does not answer counts neither as success nor as failure.
"""

import re
import socket
import time
from collections.abc import Callable

from controlplane.contract.messages.health import HealthCheck
from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.runtime import EngineAway, EngineError

STARTING_SECONDS = 1.0  # the longest pause between checks before RUNNING
REQUEST = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: cellrun-health-check\r\n"
    "Accept: */*\r\nConnection: close\r\n\r\n"
)
STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})\b")
MAX_STATUS_LINE = 1024
MAX_BODY = 64 * 1024
BLOCK = 4096
DRAIN_SECONDS = 0.2  # to read the rest of a response before the connection is closed


def watch_health(
    attempt: AttemptRun, on_healthy: Callable[[AttemptRun], None], stop: Callable[[], None]
) -> None:
    """Check until the attempt has ended; call `on_healthy` once RUNNING was reported."""
    check = attempt.launch.spec.health_check
    assert check is not None
    failures = 0
    try:
        while not attempt.ended and not attempt.context.closed.is_set():
            problem = _probe(attempt, check)
            if attempt.ended or attempt.context.closed.is_set():
                return
            if problem == "" and attempt.started_at is None:
                if not attempt.mark_healthy():
                    return
                on_healthy(attempt)
            failures = failures + 1 if problem else (0 if problem == "" else failures)
            why = _why_over(attempt, check, failures, problem)
            if why is not None:
                attempt.unhealthy = why
                stop()
                return
            is_starting = attempt.started_at is None
            pause = min(check.interval_seconds, STARTING_SECONDS if is_starting else float("inf"))
            attempt.over.wait(pause)
    except DriverClosed:
        return


def _why_over(
    attempt: AttemptRun, check: HealthCheck, failures: int, problem: str | None
) -> str | None:
    """Return why the attempt must end after a check with this result; None: it continues."""
    if not problem:
        return None
    if attempt.started_at is None:
        waited = attempt.context.now() - attempt.process_started_at
        if waited < check.start_period_seconds:
            return None
        return f"not healthy within {check.start_period_seconds:g} s: {problem}"
    if failures < check.retries:
        return None
    times = f"{failures} times in a row" if failures > 1 else "once"
    return f"its health check failed {times}: {problem}"


def _probe(attempt: AttemptRun, check: HealthCheck) -> str | None:
    """Return why the check failed; empty: it passed; None: unknown."""
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
    """Return "" if GET returns a status from 200 to 399, else the error.

    Takes little longer than `seconds`, however slowly the response arrives.
    """
    end = time.monotonic() + seconds
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as line:
            line.sendall(REQUEST.format(path=path, host=address).encode("ascii"))
            head = _read(line, end, lambda head: b"\n" in head or len(head) > MAX_STATUS_LINE)
            if b"\n" not in head and time.monotonic() >= end:
                return f"GET {path}: timed out"
            # Closing a connection with unread data looks like an error to the program.
            _read(line, time.monotonic() + DRAIN_SECONDS, lambda body: len(body) > MAX_BODY)
    except OSError as error:
        return f"GET {path}: {str(error) or type(error).__name__}"
    status = STATUS_LINE.match(head)
    if status is None:
        return f"GET {path}: not an HTTP response"
    code = int(status[1])
    return "" if 200 <= code < 400 else f"GET {path}: HTTP status {code}"


def _read(line: socket.socket, end: float, is_enough: Callable[[bytes], bool]) -> bytes:
    """Return what arrives until `is_enough`, the end of the stream, or `end` (monotonic clock)."""
    content = b""
    while not is_enough(content):
        rest = end - time.monotonic()
        if rest <= 0:
            break
        line.settimeout(rest)
        try:
            block = line.recv(BLOCK)
        except TimeoutError:
            break
        if not block:
            break
        content += block
    return content
