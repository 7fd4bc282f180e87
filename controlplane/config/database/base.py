"""Connect to PostgreSQL with a cheap check of the connection, and cheap ways to run statements.

A connection that failed no statement is checked by its socket instead of a statement. Django checks
a persistent connection before its first statement of each task and batch. A server that ends a
connection closes it, or first sends the reason: both make the socket readable. A check by a
statement would find no other failure, except a network that loses everything, in which the next
statement fails as well.

Statements of hot paths are prepared: PostgreSQL parses and plans them once for each connection.
The settings let it plan them for any values, and without scans of whole tables. The plan may be
that of a table that was empty then, so it is made again after a few seconds.
"""

import select
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db.backends.postgresql import base
from psycopg.types.datetime import TimestamptzLoader

PLAN_SECONDS = 2.0
"""The longest time for which a prepared statement keeps its plan while it is in use."""

LARGEST_PREPARED = 4_000
"""Statements with a longer text among their values, such as an array, are planned for them."""

_T = TypeVar("_T")

_planned_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


class PreparingCursor(psycopg.Cursor[Any]):
    """A cursor that prepares its statements; their values are bound by the server."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> "PreparingCursor":
        """Run a statement with its values as texts, whose types PostgreSQL infers."""
        planned_at, now = _planned_at.get(self.connection), time.monotonic()
        if planned_at is None:
            _planned_at[self.connection] = now
        elif now - planned_at > PLAN_SECONDS:
            _planned_at[self.connection] = now
            super().execute("DISCARD PLANS", prepare=False)
        try:
            super().execute(query, _as_texts(params), prepare=True, **options)
        except psycopg.errors.FeatureNotSupported:
            # A migration changed the type of a column. The next connection prepares it again.
            self.connection.close()
            raise
        return self


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to PostgreSQL."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # The cursors that run statements, by whether they prepare them.
        self._cursors: dict[bool, Any] = {}

    def run(
        self,
        statement: str,
        parameters: Any,
        read: Callable[[Any], _T],
        *,
        is_prepared: bool = False,
    ) -> _T:
        """Run a statement and return what `read` finds in its cursor.

        Take two thirds of the time of Django's cursor, which is made and wrapped for each
        statement. Statements that Django logs or passes to wrappers still use a wrapped one.
        """
        self.close_if_health_check_failed()
        self.ensure_connection()
        self.validate_thread_sharing()
        is_prepared = is_prepared and self._can_prepare(parameters)
        if self.queries_logged or self.execute_wrappers:
            django: Any = self
            with django._prepare_cursor(self._make_cursor(is_prepared)) as cursor:
                cursor.execute(statement, parameters)
                return read(cursor)
        self.validate_no_broken_transaction()
        with self.wrap_database_errors:
            # Taken while it is in use, and not kept after an error.
            cursor = self._cursors.pop(is_prepared, None)
            if cursor is None or cursor.connection is not self.connection:
                cursor = self._make_cursor(is_prepared)
            cursor.execute(statement, parameters)
            found = read(cursor)
            # A cursor would keep its result until the next statement.
            cursor.pgresult.clear()
        self._cursors[is_prepared] = cursor
        return found

    def _can_prepare(self, parameters: Any) -> bool:
        if self.settings_dict["OPTIONS"].get("prepare_threshold") is None or self.queries_logged:
            return False
        return all(
            len(value) <= LARGEST_PREPARED
            for value in _values(parameters)
            if isinstance(value, str)
        )

    def _make_cursor(self, is_prepared: bool) -> Any:
        cursor = PreparingCursor(self.connection) if is_prepared else self.connection.cursor()
        # The driver's own loader of datetimes takes a tenth of the time of Django's.
        cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        return cursor

    def is_usable(self) -> bool:
        """Return whether the connection works."""
        if self.connection is None:
            return False
        if self.errors_occurred or _is_readable(self.connection.fileno()):
            return bool(super().is_usable())
        return True


def _values(parameters: Any) -> Iterable[Any]:
    return parameters.values() if isinstance(parameters, Mapping) else parameters


def _as_texts(parameters: Any) -> Any:
    """Return values as texts, so that a statement is prepared once, whatever their types."""
    if isinstance(parameters, Mapping):
        return {name: as_text(value) for name, value in parameters.items()}
    return [as_text(value) for value in parameters or ()]


def as_text(value: Any) -> Any:
    """Return a value as a text, of which PostgreSQL infers the type."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, datetime):
        return value.isoformat()
    # Enumerations are written as their base type.
    for kind, write in ((str, str.__str__), (int, int.__repr__), (float, float.__repr__)):
        if isinstance(value, kind):
            return write(value)
    return value


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
