"""Places for heavy calls to the engine: a few at a time, first come, first served, in two classes.

New callers wait until all others have a place.
"""

import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_SECONDS = 0.2  # how often a caller that waits calls its check


class FairSemaphore:
    """At most `limit` holders at a time. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._free = limit
        self._count = 0
        self._waiting: list[tuple[bool, int, _Waiter]] = []

    @contextmanager
    def take(self, check: Callable[[], None], *, is_new: bool) -> Iterator[None]:
        """Wait for a place and hold it; `check` runs while waiting and may raise to give up."""
        self._acquire(check, is_new)
        try:
            check()
            yield
        finally:
            self._release()

    def _acquire(self, check: Callable[[], None], is_new: bool) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            waiter = _Waiter()
            self._count += 1
            heapq.heappush(self._waiting, (is_new, self._count, waiter))
        try:
            while not waiter.granted.wait(CHECK_SECONDS):
                check()
        except BaseException:
            with self._lock:
                waiter.is_gone = True
                is_granted = waiter.granted.is_set()
            if is_granted:
                self._release()
            raise

    def _release(self) -> None:
        with self._lock:
            while self._waiting:
                _, _, waiter = heapq.heappop(self._waiting)
                if not waiter.is_gone:
                    waiter.granted.set()
                    return
            self._free += 1


class _Waiter:
    """A queued caller."""

    __slots__ = ("granted", "is_gone")

    def __init__(self) -> None:
        self.granted = threading.Event()
        self.is_gone = False
