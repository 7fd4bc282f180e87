"""Call code of other packages with a timeout of at most one second.

Python cannot stop a call. A call that times out keeps its thread, and counts against its name until
it returns: a name with several stuck calls is not called any more.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from controlplane.domain.hooks.errors import describe_error
from controlplane.domain.hooks.interface import HookUnavailable

SECONDS = 1.0
"""Timeout of a call. A hook decides in microseconds; network requests do not belong in a hook."""

MOST_STUCK = 4
"""Stuck threads that a name may have in a process, so that one bad case does not disable it."""

T = TypeVar("T")


class BoundedCalls:
    """The bounded calls of one process, with the number of stuck ones by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stuck: Counter[str] = Counter()

    def call(self, name: str, work: Callable[[], T], seconds: float | None = None) -> T:
        """Return or raise what `work` does within `seconds`. Raise HookUnavailable."""
        seconds = SECONDS if seconds is None else min(seconds, SECONDS)
        with self._lock:
            stuck = self._stuck[name]
        if stuck >= MOST_STUCK:
            raise HookUnavailable(f"{stuck} earlier calls of it have not returned")
        result: Future[T] = Future()
        threading.Thread(target=_run, args=(work, result), name=f"hook-{name}", daemon=True).start()
        wait([result], seconds)
        if not result.done():
            self._count(name, 1)
            result.add_done_callback(lambda _: self._count(name, -1))
            raise HookUnavailable(f"it took longer than {seconds:g} s")
        return result.result()

    def _count(self, name: str, change: int) -> None:
        with self._lock:
            self._stuck[name] += change


def _run(work: Callable[[], T], result: "Future[T]") -> None:
    try:
        result.set_result(work())
    except Exception as error:  # raised in the thread that waits for the result
        result.set_exception(error)
    except BaseException as error:  # such as SystemExit, which would end the thread
        result.set_exception(HookUnavailable(f"it ended its thread: {describe_error(error)}"))
