"""Share the result of one call among all requests of a short time."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedProbe(Generic[T]):
    """Calls `probe` for many callers: one at a time, and only if the last result is too old."""

    def __init__(
        self, probe: Callable[[], T], *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._now = now
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None

    def get(self, *, max_age_seconds: float) -> T:
        """Return a result of at most that age. Callers that wait for a call share its result."""
        with self._lock:
            if self._last is None or self._now() - self._last[0] >= max_age_seconds:
                result = self._probe()
                self._last = (self._now(), result)
            return self._last[1]
