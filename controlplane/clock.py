"""The only clock of the control plane: PostgreSQL's, so that all its processes agree."""

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
    """The present instant, timezone-aware."""
    return _source()


def use(source: Callable[[], datetime] | None) -> None:
    """Take the time from `source` (a simulation's clock); None goes back to the database."""
    global _source
    _source = source or _database_now
