"""Virtual time: what happens, in order, and nothing in between."""

import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime


class Killed(BaseException):
    """A process was killed where it stood; nothing of ours may catch it on its way out."""


class Timeline:
    """The present, in seconds since 1970, and what is planned after it."""

    def __init__(self, begin: float) -> None:
        self.now = self._begin = begin
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do `action` at `when`, or now if that is past."""
        heapq.heappush(self._planned, (max(when, self.now), next(self._numbers), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do `action` in so many seconds."""
        self.at(self.now + seconds, action)

    def every(self, seconds: float, action: Callable[[], None], *, first: float) -> None:
        """Do `action` after `first` seconds, and again and again."""

        def again() -> None:
            action()
            self.after(seconds, again)

        self.after(first, again)

    def step(self) -> None:
        """Go to the next thing that is planned, and do it."""
        self.now, _, action = heapq.heappop(self._planned)
        action()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self.now - self._begin

    def datetime(self) -> datetime:
        """The present as the control plane reads it."""
        return datetime.fromtimestamp(self.now, UTC)
