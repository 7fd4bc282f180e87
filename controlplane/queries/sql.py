"""Plain SQL for hot paths: rows as tuples, arrays as parameters, no ORM objects."""

from collections.abc import Sequence
from typing import Any

from django.db import connection


def rows(statement: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
    """All rows that `statement` returns."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def execute(statement: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> int:
    """Run `statement`; how many rows it touched."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)
