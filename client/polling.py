"""Sleep between polls: from 0.2 s up to 2 s, and not past a deadline."""

import time
from collections.abc import Iterator

from client.errors import StillOpen

FIRST_SECONDS = 0.2
LAST_SECONDS = 2.0
GROWTH = 1.5


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
