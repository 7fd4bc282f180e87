"""Arrays reach PostgreSQL as they were, whatever they hold."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from controlplane.contract.states import FailureKind, TaskState
from controlplane.queries.sql import (
    array_literal,
    decoded,
    encoded,
    execute,
    first_row,
    named_rows,
    rows,
    scalar,
)

QUOTED = ["", "NULL", "null", None, 'a"b', "a\\b", "{a,b}", "a,b", " a ", "a\nb", "\U0001f600%s"]
EARLY = datetime(1970, 1, 1, tzinfo=UTC)
INSTANTS = [EARLY, None, EARLY + timedelta(days=20000, microseconds=1), EARLY]
UIDS = [UUID(int=1), None, UUID(int=(1 << 128) - 1)]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", QUOTED),
        ("text", []),
        ("bigint", [0, -1, (1 << 63) - 1, None]),
        ("bigint", [None, None]),
        ("boolean", [True, False, None]),
        ("double precision", [0.5, -1e300, 3.0]),
        ("timestamptz", INSTANTS),
        ("uuid", UIDS),
        ("uuid", list(reversed(UIDS))),
        ("uuid", [None, *UIDS]),
    ],
)
def test_arrays_round_trip_unchanged(kind: str, values: list[Any]) -> None:
    statement = f"SELECT value FROM unnest(%s::{kind}[]) WITH ORDINALITY AS u(value, n) ORDER BY n"
    assert [value for (value,) in rows(statement, [values])] == values
    assert [value for (value,) in rows(statement.replace("%s", "%(a)s"), {"a": values})] == values


@pytest.mark.django_db
def test_instants_are_returned_in_utc() -> None:
    ((found,),) = rows("SELECT '2026-01-02 03:04:05.000006+02'::timestamptz")
    assert found == datetime(2026, 1, 2, 1, 4, 5, 6, tzinfo=UTC)
    assert found.utcoffset() == timedelta(0)


@pytest.mark.django_db
def test_any_of_an_array_needs_no_cast() -> None:
    assert rows("SELECT 5 = ANY(%s), 'x' = ANY(%s)", [[4, 5], ["y"]]) == [(True, False)]
    assert execute("SELECT 1 WHERE 5 = ANY(%s)", [[]]) == 0


def test_enumeration_members_are_written_as_their_values() -> None:
    assert array_literal([TaskState.RUNNING, TaskState.FAILED]) == "{3,5}"
    assert array_literal([FailureKind.USER]) == '{"user"}'


def test_unsupported_array_element_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        array_literal([b"x"])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value",
    [
        {},
        {"text": 'é "\\ \n \U0001f600', "list": [1, 0.1, 1e-7, 1.5e15, None, True], "empty": []},
        {"more than 64 bits": 2**70, "negative": -(2**70)},
    ],
)
def test_values_of_json_columns_round_trip_unchanged(value: Any) -> None:
    assert decoded(scalar("SELECT %s::jsonb", [encoded(value)])) == value


@pytest.mark.django_db
def test_columns_are_fields_of_named_rows() -> None:
    statement = 'SELECT n AS index, n * 2 AS "group" FROM generate_series(1, %s) AS n'
    assert [(row.index, row.group) for row in named_rows(statement, [2])] == [(1, 2), (2, 4)]
    assert first_row(statement, [2]) == (1, 2)
    assert first_row(statement, [0]) is None
    assert scalar(statement, [2]) == 1
    assert scalar(statement, [0]) is None


@pytest.mark.django_db
def test_a_column_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="identifiers"):
        named_rows("SELECT 1 + 1")
