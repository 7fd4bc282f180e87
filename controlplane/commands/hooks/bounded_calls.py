"""Call code of other packages in bounded time: an answer is waited for a second at most.

Python cannot stop a call. One that takes too long is left to itself on its thread, and counts
against its name until it returns: a name with several of them is not called any more.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from controlplane.domain.hooks.calls import describe_error
from controlplane.domain.hooks.interface import HookUnavailable

SECONDS = 1.0
"""For one call. What a hook decides takes microseconds; what asks others must not do so here."""

MOST_STUCK = 4
"""Threads that a name may leave hanging in a process: one bad case does not close it for others."""

T = TypeVar("T")


class BoundedCalls:
    """The calls of one process, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stuck: Counter[str] = Counter()

    def call(self, name: str, work: Callable[[], T], seconds: float | None = None) -> T:
        """What `work` answers or raises, within `seconds`. Raises HookUnavailable."""
        seconds = SECONDS if seconds is None else min(seconds, SECONDS)
        with self._lock:
            stuck = self._stuck[name]
        if stuck >= MOST_STUCK:
            raise HookUnavailable(f"{stuck} earlier calls of it have not returned")
        call = _HookCall(work, lambda: self._count(name, -1))
        threading.Thread(target=call.run, name=f"hook-{name}", daemon=True).start()
        if not call.wait(seconds, lambda: self._count(name, 1)):
            raise HookUnavailable(f"it took longer than {seconds:g} s")
        return call.answer()

    def _count(self, name: str, change: int) -> None:
        with self._lock:
            self._stuck[name] += change


class _HookCall(Generic[T]):
    """One call on its own thread, which either is waited for to its end, or is given up."""

    def __init__(self, work: Callable[[], T], on_late_return: Callable[[], None]) -> None:
        self._work, self._on_late_return = work, on_late_return
        self._is_over, self._lock = threading.Event(), threading.Lock()
        self._is_given_up = False
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """On the thread."""
        try:
            self._value = self._work()
        except BaseException as error:  # it is raised where the answer is waited for
            self._error = error
        with self._lock:
            self._is_over.set()
            if self._is_given_up:
                self._on_late_return()

    def wait(self, seconds: float, on_giving_up: Callable[[], None]) -> bool:
        """Whether the call is over within `seconds`; if not, it is given up."""
        if self._is_over.wait(seconds):
            return True
        with self._lock:
            if self._is_over.is_set():
                return True
            self._is_given_up = True
            on_giving_up()
        return False

    def answer(self) -> T:
        """What it answered. Raises what it raised."""
        if self._error is None:
            answer: T = self._value
            return answer
        if isinstance(self._error, Exception):
            raise self._error
        raise HookUnavailable(
            f"it ended its thread: {describe_error(self._error)}"
        ) from self._error
