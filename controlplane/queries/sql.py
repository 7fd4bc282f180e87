"""Run plain SQL: rows as tuples or named tuples, lists as array parameters, JSON columns.

With `prepare`, a statement is planned once for each connection, for any values. The statements of
submission, of placement and of reports are: planning takes longer than they do. Such a statement
must have a good plan without its values: optional conditions and limits as parameters prevent it.
"""

import json
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import orjson
from django.db import connection

_T = TypeVar("_T")

Parameters = Sequence[Any] | dict[str, Any]
"""Values of a statement. Lists among them are PostgreSQL arrays."""

Row = Any
"""A named tuple. Its fields are the columns of the statement that returned it."""


def rows(
    statement: str, parameters: Parameters = (), *, prepare: bool = False
) -> list[tuple[Any, ...]]:
    """Return all rows of `statement` as plain tuples, for unpacking or thousands of rows."""
    return _run(statement, parameters, _fetch_all, prepare)


def named_rows(statement: str, parameters: Parameters = (), *, prepare: bool = False) -> list[Row]:
    """Return all rows of `statement` with their columns as fields; AS names an expression."""
    return _run(statement, parameters, _fetch_named, prepare)


def first_row(statement: str, parameters: Parameters = (), *, prepare: bool = False) -> Row | None:
    """Return the first row of `statement` with its columns as fields; None if it has no row."""
    found = named_rows(statement, parameters, prepare=prepare)
    return found[0] if found else None


def scalar(statement: str, parameters: Parameters = (), *, prepare: bool = False) -> Any:
    """Return the first column of the first row of `statement`; None if it has no row."""
    found = rows(statement, parameters, prepare=prepare)
    return found[0][0] if found else None


def execute(statement: str, parameters: Parameters = (), *, prepare: bool = False) -> int:
    """Run `statement` and return how many rows it touched."""
    return _run(statement, parameters, _count_rows, prepare)


def decoded(value: Any) -> Any:
    """Decode a JSON column, which a plain cursor returns as text or decoded."""
    return json.loads(value) if isinstance(value, str) else value


def encoded(value: Any) -> str:
    """Encode a value without NaN for a JSON column.

    A batch of 1,000 jobs has 8,000 such values; `json` takes 2 µs and more for each, orjson 0.2.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # such as a number of more than 64 bits
        return json.dumps(value)


def array_literal(values: Sequence[Any]) -> str:
    """Return a one-dimensional array literal of PostgreSQL; the statement must cast it.

    Bulk statements have some forty values a task, most of them equal in all rows: each distinct
    value is formatted once. That takes a tenth of the time of the driver's arrays, which inspect
    every element (a datetime takes 7 µs).
    """
    if not values:
        return "{}"
    if isinstance(values[0], UUID):  # distinct, and slow to compare
        return "{" + ",".join([_element(value) for value in values]) + "}"
    distinct = set(values)
    if len(distinct) == 1:
        return "{" + ",".join([_element(values[0])] * len(values)) + "}"
    written = {value: _element(value) for value in distinct}
    return "{" + ",".join([written[value] for value in values]) + "}"


def _run(statement: str, parameters: Parameters, read: Callable[[Any], _T], prepare: bool) -> _T:
    ours: Any = connection  # a wrapper of controlplane.config.database
    found: _T = ours.run(statement, _with_literals(parameters), read, is_prepared=prepare)
    return found


def _fetch_all(cursor: Any) -> list[tuple[Any, ...]]:
    return list(cursor.fetchall())


def _fetch_named(cursor: Any) -> list[Row]:
    make = _row_class(tuple([column.name for column in cursor.description]))._make
    return [make(row) for row in cursor.fetchall()]


def _count_rows(cursor: Any) -> int:
    return int(cursor.rowcount)


@cache
def _row_class(columns: tuple[str, ...]) -> Any:
    return namedtuple("Row", columns)


def _with_literals(parameters: Parameters) -> Parameters:
    if isinstance(parameters, dict):
        return {
            name: array_literal(value) if isinstance(value, list) else value
            for name, value in parameters.items()
        }
    return [array_literal(value) if isinstance(value, list) else value for value in parameters]


def _element(value: Any) -> str:
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value)
    # Write enumerations as their base type.
    for kind in (int, str):
        if isinstance(value, kind):
            return _WRITERS[kind](value)
    raise TypeError(f"{type(value).__name__} has no place in an array")


def _text(value: str) -> str:
    escaped = str.__str__(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_WRITERS: Mapping[type, Callable[[Any], str]] = MappingProxyType(
    {
        type(None): lambda value: "NULL",
        bool: lambda value: "t" if value else "f",
        int: int.__repr__,
        float: float.__repr__,
        str: _text,
        UUID: lambda value: f"{value.int:032x}",
        datetime: lambda value: f'"{value.isoformat()}"',
    }
)
