"""The queries of each convergence tick use an index, however many rows have ended."""

import json
from typing import Any

from django.db import connection

from controlplane import clock
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.policy import Policy
from controlplane.models import Attempt, Job, Task, TaskGroup
from controlplane.queries.convergence.due import SOURCES
from controlplane.queries.convergence.parameters import parameters_of
from controlplane.queries.sql import execute, scalar
from tests.integration.loop.conftest import Loop
from tests.integration.loop.everything import ago

OVER = 10_000
WAITING = 300
GROWS = {f"controlplane_{name}" for name in ("job", "taskgroup", "task", "attempt", "transition")}
COPIED: dict[Any, dict[str, str]] = {
    Job: {"id": "id + n"},
    TaskGroup: {"id": "id + n", "job_id": "job_id + n"},
    Task: {"id": "id + n", "job_id": "job_id + n", "group_id": "group_id + n"},
    Attempt: {
        "uid": "('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid",
        "task_id": "task_id + n",
        "group_id": "group_id + n",
        "job_id": "job_id + n",
    },
}


def copy_all(number: int) -> None:
    """So many jobs like those that there are, with all that belongs to them."""
    for model, new in COPIED.items():
        names = [field.column for field in model._meta.concrete_fields]
        values = ", ".join(new.get(name, f'"{name}"') for name in names)
        quoted = ", ".join(f'"{name}"' for name in names)
        table = model._meta.db_table
        execute(
            f"INSERT INTO {table} ({quoted}) SELECT {values} FROM {table},"
            " generate_series(1, %s) AS n",
            [number],
        )
        execute(f"ANALYZE {table}")


def rows_read(plan: dict[str, Any]) -> int:
    """Return how many rows of the growing tables were read, in a plan that was carried out."""
    read = 0
    if plan.get("Relation Name") in GROWS:
        removed = plan.get("Rows Removed by Filter", 0)
        removed += plan.get("Rows Removed by Index Recheck", 0)
        read = round(plan["Actual Loops"] * (plan["Actual Rows"] + removed))
    return read + sum(rows_read(part) for part in plan.get("Plans", ()))


def test_due_queries_do_not_read_finished_rows(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(scheduling_timeout_seconds=60)
    loop.place()
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    TaskGroup.objects.update(deadline_at=ago(3_600))
    copy_all(OVER)
    assert {name: count for name, count in read_by_source().items() if count > OVER / 10} == {}


def test_due_queries_read_waiting_jobs_of_one_shape_once_with_old_statistics(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    copy_all(OVER)
    for model in (Job, TaskGroup, Task):
        scalar(
            "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [model._meta.db_table, 10 * OVER]
        )
    for number in range(WAITING):
        loop.submit()
        if number == WAITING // 20:
            execute("ANALYZE controlplane_task")
    # Each table once for a source, and some sources twice.
    assert {name: count for name, count in read_by_source().items() if count > 8 * WAITING} == {}


def read_by_source() -> dict[str, int]:
    """Return how many rows of the growing tables each source of convergence reads."""
    parameters = parameters_of(clock.now(), clock.now(), Policy())
    read = {}
    for name, source in SOURCES.items():
        with connection.cursor() as cursor:
            cursor.execute(
                f"EXPLAIN (ANALYZE, FORMAT JSON) SELECT EXISTS (SELECT 1 {source})", parameters
            )
            [(plans,)] = cursor.fetchall()
        [plan] = json.loads(plans) if isinstance(plans, str) else plans
        read[name] = rows_read(plan["Plan"])
    return read


def test_scheduling_deadline_applies_while_an_order_is_withdrawn(loop: Loop) -> None:
    """It waits again, and its attempt may still turn up: no pass considers it."""
    cell = loop.cell()
    job = loop.submit(scheduling_timeout_seconds=3_600)
    loop.place()
    Attempt.objects.update(start_before=ago(1))
    loop.converge()
    assert (loop.states(job), Task.objects.get().attempt_open) == (["PENDING"], True)
    TaskGroup.objects.update(deadline_at=ago(1))
    loop.place()
    assert loop.converge()["unplaced"] == 1
    assert loop.states(job) == ["UNSCHEDULABLE"]
    cell.end(loop.attempts(job)[0], S.KILLED)
    assert Job.objects.get().settled_at is not None
