"""Connect to PostgreSQL with a cheap check of the connection, and a cheap way to run statements.

A connection that failed no statement is checked by its socket instead of a statement. Django checks
a persistent connection before its first statement of each task and batch. A server that ends a
connection closes it, or first sends the reason: both make the socket readable. A check by a
statement would find no other failure, except a network that loses everything, in which the next
statement fails as well.
"""

import select
from collections.abc import Callable
from typing import Any, TypeVar

from django.db.backends.postgresql import base
from psycopg.types.datetime import TimestamptzLoader

_T = TypeVar("_T")

_MAX_KEPT_ROWS = 1000


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to PostgreSQL."""

    _kept_cursor: Any = None

    def run(self, statement: str, parameters: Any, read: Callable[[Any], _T]) -> _T:
        """Run a statement and return what `read` finds in its cursor.

        This takes 60 % of the time of a cursor of Django, which is made and wrapped for each
        statement; with one are those statements run that Django logs or passes to wrappers.
        Datetimes have the driver's own loader: that of Django, in Python, takes ten times as long.
        """
        if self.queries_logged or self.execute_wrappers:
            with self.cursor() as cursor:
                cursor.cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
                cursor.execute(statement, parameters)
                return read(cursor)
        self.close_if_health_check_failed()
        self.ensure_connection()
        self.validate_no_broken_transaction()
        with self.wrap_database_errors:
            cursor, self._kept_cursor = self._kept_cursor, None
            if cursor is None or cursor.connection is not self.connection:
                cursor = self.connection.cursor()
                cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
            cursor.execute(statement, parameters)
            found = read(cursor)
        # A cursor keeps its last result.
        if cursor.rowcount <= _MAX_KEPT_ROWS:
            self._kept_cursor = cursor
        return found

    def is_usable(self) -> bool:
        """Return whether the connection works."""
        if self.connection is None:
            return False
        if self.errors_occurred or _is_readable(self.connection.fileno()):
            return bool(super().is_usable())
        return True


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
