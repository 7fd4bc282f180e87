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


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to PostgreSQL."""

    _kept_cursor: Any = None

    def run(self, statement: str, parameters: Any, read: Callable[[Any], _T]) -> _T:
        """Run a statement and return what `read` finds in its cursor.

        Take two thirds of the time of Django's cursor, which is made and wrapped for each
        statement. Statements that Django logs or passes to wrappers still use that one.
        """
        if self.queries_logged or self.execute_wrappers:
            with self.cursor() as cursor:
                _use_quick_loader(cursor.cursor)
                cursor.execute(statement, parameters)
                return read(cursor)
        self.close_if_health_check_failed()
        self.ensure_connection()
        self.validate_thread_sharing()
        self.validate_no_broken_transaction()
        with self.wrap_database_errors:
            # Taken while it is in use, and not kept after an error.
            cursor, self._kept_cursor = self._kept_cursor, None
            if cursor is None or cursor.connection is not self.connection:
                cursor = self.connection.cursor()
                _use_quick_loader(cursor)
            cursor.execute(statement, parameters)
            found = read(cursor)
            # A cursor would keep its result until the next statement.
            cursor.pgresult.clear()
        self._kept_cursor = cursor
        return found

    def is_usable(self) -> bool:
        """Return whether the connection works."""
        if self.connection is None:
            return False
        if self.errors_occurred or _is_readable(self.connection.fileno()):
            return bool(super().is_usable())
        return True


def _use_quick_loader(cursor: Any) -> None:
    """Read datetimes by the driver's own loader; that of Django takes ten times as long."""
    cursor.adapters.register_loader("timestamptz", TimestamptzLoader)


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
