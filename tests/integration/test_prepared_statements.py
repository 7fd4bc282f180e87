"""Statements with `prepare` are prepared: planned once for a connection, and again in time."""

import enum
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction

from controlplane.config.database import base
from controlplane.queries.sql import execute, rows, scalar

pytestmark = pytest.mark.django_db(transaction=True)


class Number(enum.IntEnum):
    SEVEN = 7


class Word(enum.StrEnum):
    QUOTED = 'a "word" of the O\'Neills'


@pytest.fixture(autouse=True)
def new_connection() -> Iterator[None]:
    connection.close()
    yield
    connection.close()


def prepared() -> list[tuple[str, int, int]]:
    """Return the prepared statements of the connection, with their generic and custom plans."""
    return rows("SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements")


def test_statement_is_planned_once_for_any_values() -> None:
    statement = "SELECT id FROM controlplane_job WHERE id = %s AND name = %s"
    for number, name in enumerate(["a", "b", None, "c"]):
        rows(statement, [number, name], prepare=True)
    assert prepared() == [
        ("SELECT id FROM controlplane_job WHERE id = $1 AND name = $2", 4, 0),
    ]


def test_other_statements_are_not_prepared() -> None:
    assert scalar("SELECT %s + 1", [1]) == 2
    assert prepared() == []


@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 1 << 62),
        ("bigint", -1),
        ("smallint", Number.SEVEN),
        ("boolean", True),
        ("boolean", False),
        ("float8", 0.1),
        ("float8", float("inf")),
        ("float8", 3),
        ("numeric", 10**30),
        ("text", "100 % of 'them'\\"),
        ("text", ""),
        ("text", Word.QUOTED),
        ("text", None),
        ("timestamptz", datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        ("uuid", UUID(int=1 << 100)),
        ("bigint[]", [1, None, 3]),
        ("text[]", ["a,b", '"']),
    ],
)
def test_values_arrive_as_they_are(prepare: bool, kind: str, value: Any) -> None:
    statement = f"SELECT %s::{kind}, %s::{kind} IS NULL"
    assert rows(statement, [value, value], prepare=prepare) == [(value, value is None)]
    named = f"SELECT %(it)s::{kind}, %(it)s::{kind} IS NULL, '%%'"
    assert rows(named, {"it": value}, prepare=prepare) == [(value, value is None, "%")]
    assert len(prepared()) == 2 * prepare


def test_large_array_is_planned_for() -> None:
    statement = "SELECT count(*) FROM controlplane_job WHERE id = ANY(%s)"
    assert scalar(statement, [list(range(100_000))], prepare=True) == 0
    assert prepared() == []
    assert scalar(statement, [[1, 2]], prepare=True) == 0
    assert len(prepared()) == 1


@pytest.fixture
def table() -> Iterator[str]:
    execute("CREATE TABLE planned (key integer PRIMARY KEY, kind integer)")
    execute("CREATE INDEX planned_kind ON planned (kind)")
    yield "planned"
    execute("DROP TABLE planned")


def test_table_that_was_empty_is_not_scanned_when_it_is_full(table: str) -> None:
    statement = f"SELECT key FROM {table} WHERE key = %s"
    rows(statement, [1], prepare=True)
    execute(f"INSERT INTO {table} SELECT n, 1 FROM generate_series(1, 100000) n")
    assert rows(statement, [7], prepare=True) == [(7,)]
    plan = " ".join(line for (line,) in rows("EXPLAIN EXECUTE _pg3_0(7)"))
    assert f"{table}_pkey" in plan
    assert "Seq Scan" not in plan


def test_plan_is_made_again_in_time(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # An analysed empty table: the planner takes any index.
    execute(f"VACUUM ANALYZE {table}")
    statement = f"SELECT count(*) FROM {table} WHERE kind = %s AND key = %s"
    now = [1000.0]
    monkeypatch.setattr(base.time, "monotonic", lambda: now[0])

    def index() -> str:
        assert scalar(statement, [1, 7], prepare=True) == scalar(statement, [1, 7])
        plan = " ".join(line for (line,) in rows("EXPLAIN EXECUTE _pg3_0(1, 7)"))
        return "key" if f"{table}_pkey" in plan else "kind"

    assert index() == "kind"
    execute(f"INSERT INTO {table} SELECT n, 1 FROM generate_series(1, 100000) n")
    now[0] += base.PLAN_SECONDS
    assert index() == "kind"
    now[0] += 0.001
    assert index() == "key"


def test_changed_type_of_a_column_fails_one_statement_at_most(table: str) -> None:
    statement = f"SELECT kind FROM {table} WHERE key = %s"
    execute(f"INSERT INTO {table} VALUES (1, 5)")
    assert scalar(statement, [1], prepare=True) == 5
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ALTER kind TYPE text")
    other.close()
    try:
        scalar(statement, [1], prepare=True)
    except DatabaseError:
        connection.close_if_unusable_or_obsolete()
    assert scalar(statement, [1], prepare=True) == "5"


def test_failed_statement_and_rollback_leave_the_others_usable() -> None:
    good, bad = "SELECT %s::int", "SELECT 1 / %s::int"
    assert scalar(good, [1], prepare=True) == 1

    def fail() -> None:
        scalar(good, [2], prepare=True)
        scalar(bad, [0], prepare=True)

    for _ in range(2):
        with pytest.raises(DatabaseError):
            transaction.atomic(fail)()
        assert scalar(good, [3], prepare=True) == 3
        assert scalar(bad, [1], prepare=True) == 1


def test_setting_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "prepare_threshold", None)
    assert scalar("SELECT %s::int", [1], prepare=True) == 1
    assert prepared() == []
