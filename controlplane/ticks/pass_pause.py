"""Pause between passes of placement on a busy machine, so that each pass places more tasks.

A pass has a fixed cost, 28 statements, and so has each message to a cell. On a machine whose cores
are all in use, a pass for each wake takes this time from the processes that start tasks.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

USUAL_WAIT_SECONDS = 0.005
"""How long the thread of a pass waits for a core on an idle machine, where PostgreSQL and the pass
work by turns: 3 ms. With all cores in use it is 10 to 30 ms.
"""

PAUSE_RATIO = 8.0
"""Seconds of pause for each second of waiting beyond the usual."""

MAX_PAUSE_SECONDS = 0.1

_SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")


def find_waited_seconds() -> float:
    """Return how long this thread has waited for a core; 0.0 where Linux does not count it."""
    try:
        nanoseconds = _SCHEDULER_STATISTICS.read_text().split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(nanoseconds) / 1e9


class PassPause:
    """Measures passes, and separates two of them by a pause."""

    def __init__(
        self,
        *,
        timer: Callable[[], float] = time.monotonic,
        waited: Callable[[], float] = find_waited_seconds,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timer, self._waited, self._sleep = timer, waited, sleep
        self._until = 0.0

    def wait(self) -> None:
        """Wait until the pause after the last pass is over."""
        seconds = self._until - self._timer()
        if seconds > 0:
            self._sleep(seconds)

    def measure(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, a pass, and begin the pause after it."""
        before = self._waited()
        result = work()
        excess = max(self._waited() - before - USUAL_WAIT_SECONDS, 0.0)
        self._until = self._timer() + min(PAUSE_RATIO * excess, MAX_PAUSE_SECONDS)
        return result
