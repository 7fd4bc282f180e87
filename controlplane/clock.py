"""The only clock of the control plane: that of PostgreSQL, so that all processes agree."""

from collections.abc import Callable
from datetime import datetime

from django.db import connection


def _database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


_source: Callable[[], datetime] = _database_now


def now() -> datetime:
    """Return the current time, timezone-aware."""
    return _source()


def use(source: Callable[[], datetime] | None) -> None:
    """Read the time from `source` (a simulation's clock); None restores the database clock."""
    global _source
    _source = source or _database_now
