"""Rest after passes on a busy machine: fewer and larger passes leave time for the rest of the work.

A pass has a fixed cost, 32 statements, and so has each message to a cell. On a machine whose cores
are all in use, passes that begin at every wake take this time from the processes that start tasks.
"""

import time
from collections.abc import Callable

USUAL_RATIO = 2.5
"""Duration of a pass in terms of the CPU time of its thread: 1.9 to 2.2 on an idle machine, while
PostgreSQL takes the remainder, and 3.5 on one whose cores are all in use.
"""

REST_RATIO = 8.0
"""The rest in terms of what a pass takes beyond USUAL_RATIO."""

MAX_REST_SECONDS = 0.1


class PassRest:
    """Separates passes. A single slow one leads to no rest, only the second in turn."""

    def __init__(
        self,
        *,
        timer: Callable[[], float] = time.monotonic,
        cpu_timer: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timer, self._cpu_timer, self._sleep = timer, cpu_timer, sleep
        self._rests_until = 0.0
        self._former_excess = 0.0

    def run(self, work: Callable[[], bool]) -> None:
        """Run `work` after the rest of the last pass. `work` returns whether it was a pass."""
        rest = self._rests_until - self._timer()
        if rest > 0:
            self._sleep(rest)
        began, cpu_began = self._timer(), self._cpu_timer()
        if work():
            cpu_seconds, ended = self._cpu_timer() - cpu_began, self._timer()
            excess = max(ended - began - USUAL_RATIO * cpu_seconds, 0.0)
            self._rests_until = ended + find_rest(excess, self._former_excess)
            self._former_excess = excess


def find_rest(excess: float, former_excess: float) -> float:
    """Return the rest in seconds after two passes that took so much longer than usual."""
    return min(REST_RATIO * min(excess, former_excess), MAX_REST_SECONDS)
