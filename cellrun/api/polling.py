"""Sleep between polls, from 0.2 s up to 2 s and not past a deadline, and when the server demands.

The server demands a pause with the status 429: the token has spent the units that it has.
"""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from cellrun.errors import ApiError, StillOpen, Unreachable

FIRST_SECONDS = 0.2
LAST_SECONDS = 2.0
GROWTH = 1.5
# Together at most five minutes, for a client that submits much faster than its token may.
THROTTLED_TRIES = 30
LONGEST_PAUSE_SECONDS = 10.0
TOO_MANY_REQUESTS = 429

TRANSIENT = frozenset({502, 503, 504})
"""Statuses of a server that is unavailable for a short time, or of a proxy in front of it."""

# A web process restarts within seconds.
RESTART_PAUSES = (0.2, 0.4, 0.8, 1.6, 3.2)
MAX_RESTART_PAUSE = 5.0

T = TypeVar("T")


class PollInterval:
    """Sleeps between polls, longer each time; `reset` after a change."""

    def __init__(self, deadline_seconds: float | None = None) -> None:
        self._next = FIRST_SECONDS
        self._deadline = None if deadline_seconds is None else time.monotonic() + deadline_seconds

    def reset(self) -> None:
        """Return to the shortest interval."""
        self._next = FIRST_SECONDS

    def rest(self, waiting_for: str) -> None:
        """Sleep. Raise StillOpen, naming `waiting_for`, once the deadline has passed."""
        seconds = self._next
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise StillOpen(
                    f"gave up waiting for {waiting_for} at the deadline; nothing was cancelled"
                )
            seconds = min(seconds, left)
        time.sleep(seconds)
        self._next = min(self._next * GROWTH, LAST_SECONDS)


def beats(pace: PollInterval, waiting_for: str) -> Iterator[None]:
    """Yield now and after each interval."""
    while True:
        yield
        pace.rest(waiting_for)


def repeat_refused(request: Callable[[], T], *, is_repeatable: bool) -> T:
    """Return the result of `request`; pause and repeat it while the server does not accept it.

    One of too many requests, and one whose connection was refused, has changed nothing and is
    always repeated. `is_repeatable`: also one that may have arrived while the server, or a proxy,
    was unavailable. That lasts some seconds, as a restart of the server does.
    """
    throttled, pauses = THROTTLED_TRIES, iter(RESTART_PAUSES)
    while True:
        try:
            return request()
        except ApiError as fault:
            if fault.status == TOO_MANY_REQUESTS and throttled:
                throttled -= 1
                time.sleep(min(fault.pause_seconds, LONGEST_PAUSE_SECONDS))
                continue
            is_short = not fault.has_pause or fault.pause_seconds <= MAX_RESTART_PAUSE
            pause = next(pauses, None) if fault.status in TRANSIENT and is_short else None
            if pause is None or not is_repeatable:
                raise
            time.sleep(max(pause, fault.pause_seconds) if fault.has_pause else pause)
        except Unreachable as fault:
            may_repeat = fault.is_refused or (fault.is_lost and is_repeatable)
            pause = next(pauses, None) if may_repeat else None
            if pause is None:
                raise
            time.sleep(pause)
