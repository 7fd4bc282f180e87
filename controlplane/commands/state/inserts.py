"""Insert many rows of a table with one statement."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from controlplane.queries.sql import rows

Columns = Mapping[str, tuple[str, Sequence[Any]]]
"""The SQL type and the values, one for each row, of each column by name."""


def insert_rows(table: str, columns: Columns, ending: str = "") -> list[tuple[Any, ...]]:
    """Insert rows into `table` with one statement; return the rows of its RETURNING in `ending`."""
    statement = _statement(
        table, tuple((name, kind) for name, (kind, _) in columns.items()), ending
    )
    return rows(
        statement, {name: list(values) for name, (_, values) in columns.items()}, prepare=True
    )


@cache
def _statement(table: str, columns: tuple[tuple[str, str], ...], ending: str) -> str:
    names = ", ".join(name for name, _ in columns)
    # Pass documents and arrays as texts: unnest would flatten an array of arrays.
    arrays = ", ".join(
        f"%({name})s::{'text' if kind in ('jsonb', 'int[]', 'text[]') else kind}[]"
        for name, kind in columns
    )
    selected = ", ".join(f"r.{name}::{kind}" for name, kind in columns)
    return f"""
        INSERT INTO {table} ({names})
        SELECT {selected} FROM unnest({arrays}) AS r ({names}) {ending}
        """
