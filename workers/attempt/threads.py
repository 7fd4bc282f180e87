"""Daemon threads, which never delay the end of the process, and a timer."""

import collections
import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)
Work = Callable[[], None]


class DaemonPool:
    """Runs work in at most `limit` daemon threads, started on demand; further work queues."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0  # idle threads minus queued work

    def submit(self, work: Work) -> None:
        """Queue `work`; its exceptions are logged."""
        with self._lock:
            self._free -= 1
            if self._free < 0 and self._threads < self._limit:
                self._threads += 1
                self._free += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._queue.put(work)

    def close(self) -> None:
        """End idle threads; busy ones end after their work."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("work_failed", pool=self._name)
            with self._lock:
                self._free += 1


class ThreadGate:
    """Admits at most `limit` holders at a time; queued work occupies no thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._inside: set[str] = set()
        self._waiting: collections.deque[tuple[str, Work]] = collections.deque()

    def enter(self, name: str, work: Work) -> None:
        """Call `work`, which must be quick, now or when a holder leaves."""
        with self._lock:
            if len(self._inside) >= self._limit:
                self._waiting.append((name, work))
                return
            self._inside.add(name)
        work()

    def leave(self, name: str) -> None:
        """Release the place of `name`, if it holds one, and admit the next."""
        with self._lock:
            if name not in self._inside:
                return
            self._inside.discard(name)
            if not self._waiting:
                return
            following, work = self._waiting.popleft()
            self._inside.add(following)
        work()


class Timer:
    """Calls functions at given times from one thread; they must be quick."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._serve, name="timer", daemon=True).start()

    def call_in(self, seconds: float, work: Work) -> None:
        """Call `work` in `seconds`."""
        entry = (time.monotonic() + seconds, next(self._numbers), work)
        with self._changed:
            heapq.heappush(self._due, entry)
            if self._due[0] is entry:  # else its thread sleeps until an earlier one
                self._changed.notify()

    def close(self) -> None:
        """Drop all pending calls."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                log.exception("timer_failed")

    def _next(self) -> Work | None:
        with self._changed:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
            return None
