"""Limit how much each key, such as a token or an address, may take: a token bucket for each.

The buckets are in this process. They protect its time, need no answer of another server, and each
web process has its own.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# More keys than this are callers without tokens, whose oldest buckets can be forgotten.
MAX_KEYS = 20_000


@dataclass(frozen=True, slots=True)
class Limit:
    """What a bucket holds when it is full, and how fast it is refilled."""

    per_second: float
    burst: float


class Buckets:
    """Token buckets by key."""

    def __init__(
        self, *, now: Callable[[], float] = time.monotonic, max_keys: int = MAX_KEYS
    ) -> None:
        self._now = now
        self._max_keys = max_keys
        self._lock = threading.Lock()
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, cost: float, limit: Limit) -> float:
        """Take `cost` and return 0; or take nothing and return the seconds until it is there."""
        with self._lock:
            level, now = self._level(key, limit)
            if level < cost:
                return (cost - level) / limit.per_second
            self._set(key, level - cost, now)
            return 0.0

    def charge(self, key: str, cost: float, limit: Limit) -> None:
        """Take `cost`, also from a bucket that does not have it. A negative cost is given back."""
        with self._lock:
            level, now = self._level(key, limit)
            self._set(key, min(level - cost, limit.burst), now)

    def _level(self, key: str, limit: Limit) -> tuple[float, float]:
        now = self._now()
        level, at = self._levels.get(key, (limit.burst, now))
        return min(limit.burst, level + (now - at) * limit.per_second), now

    def _set(self, key: str, level: float, now: float) -> None:
        self._levels[key] = (level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._max_keys:
            self._levels.popitem(last=False)
