"""A recorder adds the plan of a statement to a file, and the statement has its effect once."""

import json
from pathlib import Path

import pytest
from django.db import connection, transaction

from benchmarks.plans.parsing import walk
from benchmarks.plans.recorder import BURST, EVERY_SECONDS, Recorder
from controlplane.queries.sql import rows

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def records_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(statement: str, parameters: list[object] | None = None) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall()) if cursor.description else []


@pytest.fixture
def numbers() -> None:
    run("CREATE TEMPORARY TABLE IF NOT EXISTS numbers (n integer PRIMARY KEY)")
    run("TRUNCATE numbers")


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.usefixtures("numbers")
def test_statement_has_its_effect_once_and_its_plan_is_recorded(
    tmp_path: Path, is_atomic: bool
) -> None:
    path = tmp_path / "plans.jsonl"
    with connection.execute_wrapper(Recorder(path, Clock())):
        if is_atomic:
            with transaction.atomic():
                run("INSERT INTO numbers SELECT generate_series(1, %s)", [5])
        else:
            run("INSERT INTO numbers SELECT generate_series(1, %s)", [5])
    assert run("SELECT count(*) FROM numbers") == [(5,)]
    (record,) = records_of(path)
    plan = record["plan"]
    assert isinstance(plan, dict)
    assert max(node["Actual Rows"] for node in walk(plan)) == 5
    assert plan["Shared Hit Blocks"] >= 0


@pytest.mark.usefixtures("numbers")
def test_first_calls_are_recorded_and_then_one_in_each_interval(tmp_path: Path) -> None:
    path, clock = tmp_path / "plans.jsonl", Clock()
    with connection.execute_wrapper(Recorder(path, clock)):
        for _ in range(2 * BURST):
            run("SELECT n FROM numbers")
        assert len(records_of(path)) == BURST
        clock.now += EVERY_SECONDS / 2
        run("SELECT n FROM numbers")
        assert len(records_of(path)) == BURST
        clock.now += EVERY_SECONDS / 2
        for _ in range(3):
            run("SELECT n FROM numbers")
        assert len(records_of(path)) == BURST + 1
        run("SELECT 1 FROM numbers")
    assert len(records_of(path)) == BURST + 2


@pytest.mark.usefixtures("numbers")
def test_failing_statement_fails_itself_and_leaves_the_transaction_usable(tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    with connection.execute_wrapper(Recorder(path, Clock())), transaction.atomic():
        run("INSERT INTO numbers VALUES (1)")
        with pytest.raises(Exception, match="duplicate key"), transaction.atomic():
            run("INSERT INTO numbers SELECT 1")
        run("INSERT INTO numbers VALUES (2)")
    assert run("SELECT n FROM numbers ORDER BY n") == [(1,), (2,)]


def test_statements_with_effects_that_outlive_a_rollback_are_not_run_twice(tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    with connection.execute_wrapper(Recorder(path, Clock())), transaction.atomic():
        run("SELECT pg_advisory_xact_lock(4711)")
        run("CREATE TEMPORARY TABLE other (n integer)")
    assert records_of(path) == []


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.usefixtures("numbers")
def test_plan_of_a_prepared_statement_is_the_one_for_any_values(
    tmp_path: Path, is_atomic: bool
) -> None:
    path = tmp_path / "plans.jsonl"
    run("INSERT INTO numbers SELECT generate_series(1, 1000)")
    statement = "SELECT n FROM numbers WHERE n = ANY(%(these)s) OR n = %(one)s ORDER BY n"
    values = {"these": [1, 2], "one": 7}
    with connection.execute_wrapper(Recorder(path, Clock())):
        for _ in range(2):
            if is_atomic:
                with transaction.atomic():
                    found = rows(statement, values, prepare=True)
            else:
                found = rows(statement, values, prepare=True)
            assert found == [(1,), (2,), (7,)]
    assert len(records_of(path)) == 2
    for record in records_of(path):
        plan = record["plan"]
        assert isinstance(plan, dict)
        assert plan["Actual Rows"] == 3
        assert any("$" in node.get("Index Cond", "") for node in walk(plan))
    prepared = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'recorded%'"
    assert run(prepared) == [(0,)]
