"""Placement, convergence and reports sort or group tasks once, whatever the planner expects.

A table that was analysed while it had no row, as while the transaction that fills it is not over,
makes the planner expect one row. A sub-select that it then computes again for each row takes
minutes for a few hundred tasks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Quota, Task
from controlplane.queries.sql import decoded, execute
from tests.integration.loop.conftest import FakeCell, Loop

TASKS = 120
SORTING = ("Sort", "Unique", "Group", "Aggregate", "WindowAgg", "SetOp")

SMALL = {"cpu": 0.01, "memory": "6Mi"}
EXPLAINED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")


def submit_one_job(loop: Loop, count: int, **group: Any) -> list[Job]:
    return [loop.submit(replicas=count, resources=SMALL, **group)]


def submit_jobs(loop: Loop, count: int, **group: Any) -> list[Job]:
    return [loop.submit(resources=SMALL, **group) for _ in range(count)]


def submit_shapes(loop: Loop, count: int) -> list[Job]:
    return [
        loop.submit(resources={"cpu": 0.01, "memory": f"{6 + n}Mi"}, scheduling_timeout_seconds=60)
        for n in range(count)
    ]


def submit_dependents(loop: Loop, count: int) -> list[Job]:
    group = {"image": "x", "command": ["true"], "resources": SMALL}
    first = {"name": "first", **group}
    second = {"name": "second", "depends_on": [{"group": "first"}], **group}
    return [loop.submit(groups=[first, second]) for _ in range(count)]


def submit_serialized(loop: Loop, count: int) -> list[Job]:
    cache = {"enabled": True, "serialize": True, "key": f"same-of-{count}"}
    return submit_jobs(loop, count, cache=cache)


def submit_limited(loop: Loop, count: int) -> list[Job]:
    Quota.objects.create(user=loop.owner, running_jobs=count // 2)
    return submit_jobs(loop, count)


def submit_gangs(loop: Loop, count: int) -> list[Job]:
    return submit_one_job(loop, count, coscheduled=True)


def submit_keyed(loop: Loop, count: int) -> list[Job]:
    return submit_jobs(loop, count, concurrency={"key": f"of-{count}", "limit": count // 2})


def submit_retried(loop: Loop, count: int) -> list[Job]:
    return submit_one_job(loop, count, retries={"failure": 1})


@contextmanager
def explained() -> Iterator[set[tuple[str, str]]]:
    """Collect statements, with a node of their plan, that sort or group all tasks for each task."""
    found: set[tuple[str, str]] = set()

    def explain(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not many and sql.lstrip().startswith(EXPLAINED):
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
                [(plans,)] = cursor.fetchall()
                transaction.set_rollback(True)
            [plan] = decoded(plans)
            found.update((sql, kind) for kind in computed_again(plan["Plan"]))
        return run(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield found


def computed_again(node: dict[str, Any]) -> Iterator[str]:
    """Return nodes that sort, group or lock a third of the square of TASKS rows in all loops."""
    kind, children = node["Node Type"], node.get("Plans", ())
    read = 0
    if kind.endswith(SORTING):
        read = sum(child["Actual Rows"] * child["Actual Loops"] for child in children)
    elif kind == "LockRows":
        read = node["Actual Rows"] * node["Actual Loops"]
    if node["Actual Loops"] > 1 and read > TASKS**2 / 3:
        yield kind
    for child in children:
        yield from computed_again(child)


@pytest.fixture
def old_statistics(loop: Loop) -> Iterator[None]:
    """Let the planner expect one row of each table."""
    tables = "WHERE relkind = 'r' AND relname LIKE 'controlplane%%'"
    execute(f"UPDATE pg_class SET reltuples = 0, relpages = greatest(relpages, 300) {tables}")
    execute(f"DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class {tables})")
    yield
    execute(f"UPDATE pg_class SET reltuples = -1, relpages = 0 {tables}")


def live(loop: Loop, cell: FakeCell, jobs: list[Job], *ends: S) -> None:
    """Let the tasks of the jobs be placed, run and end, once for each of `ends`."""
    for state in ends:
        for _ in range(2):
            loop.converge()
            loop.place()
            held = list(Attempt.objects.filter(released_at=None))
            if not held:
                continue
            code = int(state is S.FAILED)
            cell.beat(*held)
            cell.report(*(AttemptReport(str(one.uid), 0, S.RUNNING) for one in held))
            loop.converge()
            cell.report(
                *(AttemptReport(str(one.uid), 0, state, gone=True, exit_code=code) for one in held)
            )
        Task.objects.update(not_before=None)
    loop.converge()
    assert {loop.state(job) for job in jobs} == {"SUCCEEDED"}


@pytest.mark.parametrize(
    "submit",
    [
        submit_one_job,
        submit_jobs,
        submit_shapes,
        submit_dependents,
        submit_serialized,
        submit_gangs,
        submit_keyed,
        submit_limited,
        submit_retried,
    ],
)
def test_sub_selects_are_computed_once_although_the_planner_expects_one_row(
    loop: Loop, many_slots: None, old_statistics: None, submit: Callable[[Loop, int], list[Job]]
) -> None:
    cell = loop.cell(cpu=64_000, memory=64_000)
    ends = (S.FAILED, S.SUCCEEDED) if submit is submit_retried else (S.SUCCEEDED,)
    with explained() as found:
        live(loop, cell, submit(loop, TASKS), *ends)
    assert found == set()
