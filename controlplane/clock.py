"""The only clock of the control plane: that of PostgreSQL, so that all processes agree.

A process reads it every half minute, and adds its own elapsed time in between: a statement for each
reading would be a third of what an idle control plane asks of PostgreSQL.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

READ_SECONDS = 30.0
"""Two clocks drift apart by a few milliseconds in this time."""

_MAX_ROUND_TRIP_SECONDS = 0.01
"""A slower reading does not tell precisely enough when it was true."""


def _elapsed_seconds() -> float:
    """Return seconds since the start of the machine, with those for which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The time of PostgreSQL at a time of this machine."""

    now: datetime
    elapsed: float


class DatabaseClock:
    """Returns the time of PostgreSQL, read every `read_seconds`. Threads may share it."""

    def __init__(
        self,
        elapsed_seconds: Callable[[], float] = _elapsed_seconds,
        *,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._elapsed_seconds = elapsed_seconds
        self._read_seconds = read_seconds
        self._last: _Reading | None = None

    def __call__(self) -> datetime:
        """Return the time, from the last reading if it is recent."""
        elapsed, last = self._elapsed_seconds(), self._last
        if last is not None and elapsed - last.elapsed < self._read_seconds:
            return last.now + timedelta(seconds=elapsed - last.elapsed)
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            now: datetime = cursor.fetchone()[0]
        round_trip = self._elapsed_seconds() - elapsed
        is_precise = round_trip <= _MAX_ROUND_TRIP_SECONDS
        self._last = _Reading(now, elapsed + round_trip / 2) if is_precise else None
        return now


_database_clock = DatabaseClock()
_source: Callable[[], datetime] = _database_clock


def now() -> datetime:
    """Return the current time, timezone-aware."""
    return _source()


def monotonic() -> float:
    """Return seconds that only grow, for limits of how long work may take.

    With a simulation's clock these are its seconds: a run does not depend on the machine's speed,
    and work that takes no simulated time reaches no limit.
    """
    return time.monotonic() if isinstance(_source, DatabaseClock) else _source().timestamp()


def use(source: Callable[[], datetime] | None) -> None:
    """Read the time from `source` (a simulation's clock); None restores the database clock."""
    global _source
    _source = source or _database_clock
