"""Sleep between polls, from 0.2 s up to 2 s and not past a deadline, and when the server demands.

The server demands a pause with the status 429: the token has spent the units that it has.
"""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from client.errors import ApiError, StillOpen

FIRST_SECONDS = 0.2
LAST_SECONDS = 2.0
GROWTH = 1.5
# Together at most five minutes, for a client that submits much faster than its token may.
THROTTLED_TRIES = 30
LONGEST_PAUSE_SECONDS = 10.0
TOO_MANY_REQUESTS = 429

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


def repeat_throttled(request: Callable[[], T]) -> T:
    """Return the result of `request`; while it is refused as one of too many, pause and repeat it.

    A refused request has changed nothing, so any request can be repeated.
    """
    for _ in range(THROTTLED_TRIES):
        try:
            return request()
        except ApiError as fault:
            if fault.status != TOO_MANY_REQUESTS:
                raise
            time.sleep(min(fault.pause_seconds, LONGEST_PAUSE_SECONDS))
    return request()
