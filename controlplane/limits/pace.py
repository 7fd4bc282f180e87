"""Limit the bytes per second of a stream: a token bucket that returns how long to wait."""

from collections.abc import Callable


class Pace:
    """A bucket of bytes: full at the beginning, and refilled with time."""

    def __init__(self, *, per_second: float, burst: float, now: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now = now
        self._level = burst
        self._at = now()

    def take(self, size: int) -> float:
        """Take `size` bytes, possibly as a debt; return the seconds until the debt is paid."""
        now = self._now()
        self._level = min(self._burst, self._level + (now - self._at) * self._per_second) - size
        self._at = now
        return max(0.0, -self._level / self._per_second)
