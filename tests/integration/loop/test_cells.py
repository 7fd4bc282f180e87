"""Cells: orders of operators, quarantines, and what cells report of themselves."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from controlplane import clock
from controlplane.commands.cells.operate import (
    cordon_cell,
    drain_cell,
    uncordon_cell,
    unquarantine_cell,
)
from controlplane.commands.convergence.late_tasks import apply_task_rule
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import AttemptReport, Goodbye, Heartbeat
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.convergence.task_rules import DRAINED
from controlplane.models import Alert, Attempt, Cell, CellLease, Job, Task
from controlplane.queries.convergence.due import SOURCES
from controlplane.queries.convergence.late_tasks import find_candidates
from controlplane.queries.convergence.parameters import parameters_of
from controlplane.queries.views.cells import get_cell
from tests.integration.loop.conftest import FakeCell, Loop

ORDERS: dict[str, Any] = {
    "CORDONED": lambda: cordon_cell(name="cell-1", actor="me", now=clock.now()),
    "DRAINING": lambda: drain_cell(name="cell-1", actor="me", now=clock.now()),
}


def state() -> str:
    return Cell.objects.get(name="cell-1").state


def lose(loop: Loop) -> None:
    """Let its lease expire while the inbox works."""
    past = clock.now() - timedelta(seconds=60)
    CellLease.objects.update(expires_at=past, last_message_at=past, silent_ticks=9)
    loop.converge()
    assert state() == "LOST"


def come_back(cell: FakeCell) -> None:
    """In a new incarnation."""
    cell.incarnation, cell.seq = "two", 0
    assert cell.register().verdict == "accepted"


def begun(loop: Loop, cell: FakeCell, **body: Any) -> tuple[Job, Attempt]:
    """A job whose one task runs on the cell."""
    job = loop.submit(**body)
    loop.place()
    (attempt,) = loop.attempts(job)
    cell.report(report_of(attempt, S.RUNNING))
    return job, attempt


def report_of(attempt: Attempt, reported: S, **facts: Any) -> AttemptReport:
    return AttemptReport(str(attempt.uid), 0, reported, **facts)


# ------------------------------------------------------------------ orders


@pytest.mark.parametrize("ordered", ORDERS)
def test_ordered_state_of_a_cell_survives_its_loss(loop: Loop, ordered: str) -> None:
    cell = loop.cell()
    ORDERS[ordered]()
    lose(loop)
    come_back(cell)
    assert state() == ordered
    uncordon_cell(name="cell-1", actor="me", now=clock.now())
    lose(loop)
    cell.incarnation, cell.seq = "three", 0
    cell.register()
    assert state() == "READY"


def test_state_reason_survives_a_cell_restart(loop: Loop) -> None:
    cell = loop.cell()
    ORDERS["CORDONED"]()
    cell.register()
    assert (state(), get_cell("cell-1")["state_reason"]) == ("CORDONED", "cordoned by me")


def test_drain_deadline_evicts_without_charging_the_task(loop: Loop) -> None:
    cell = loop.cell()
    job, attempt = begun(loop, cell)
    drain_cell(name="cell-1", actor="me", now=clock.now(), deadline_seconds=60)
    assert "drained" not in loop.converge()
    assert Task.objects.get().state == S.RUNNING
    other = loop.cell("cell-2")
    drain_cell(name="cell-1", actor="me", now=clock.now(), deadline_seconds=0)
    assert loop.converge()["drained"] == 1
    assert cell.stop_orders() == [str(attempt.uid)]
    attempt.refresh_from_db()
    assert (attempt.state, attempt.reason, attempt.charged) == (S.PREEMPTED, "drained", "")
    cell.end(attempt, S.KILLED)
    loop.place()
    assert other.run_orders()
    task = Task.objects.get()
    assert (task.preemption_count, task.failure_count, task.system_failure_count) == (0, 0, 0)
    assert loop.attempts(job)[-1].cell.name == "cell-2"


def test_cancelled_drain_evicts_nothing(loop: Loop) -> None:
    cell = loop.cell()
    begun(loop, cell)
    drain_cell(name="cell-1", actor="me", now=clock.now(), deadline_seconds=0)
    now = clock.now()
    found = find_candidates("drained", parameters_of(now, None, Policy()))
    assert len(found) == 1
    uncordon_cell(name="cell-1", actor="me", now=clock.now())
    assert apply_task_rule(DRAINED, found, RuleContext(now, Policy(), frozenset())) == 0
    assert Task.objects.get().state == S.RUNNING


def test_drain_without_a_deadline_evicts_nothing(loop: Loop) -> None:
    cell = loop.cell()
    begun(loop, cell)
    drain_cell(name="cell-1", actor="me", now=clock.now(), deadline_seconds=None)
    assert "drained" not in loop.converge()
    assert get_cell("cell-1")["drain_deadline_at"] is None


def test_drain_does_not_evict_at_most_once_tasks(loop: Loop) -> None:
    cell = loop.cell()
    begun(loop, cell, delivery="at_most_once")
    drain_cell(name="cell-1", actor="me", now=clock.now(), deadline_seconds=0)
    assert "drained" not in loop.converge()


def test_drain_continues_while_the_cell_is_quarantined(loop: Loop) -> None:
    cell = loop.cell()
    begun(loop, cell)
    begun(loop, cell)
    drain_cell(name="cell-1", actor="me", now=clock.now(), deadline_seconds=0)
    Cell.objects.update(state="QUARANTINED", quarantined_for="stops")
    assert loop.converge()["drained"] == 2


# ------------------------------------------------------------------ quarantine


def fail(loop: Loop, cell: FakeCell, number: int, *, jobs: int = 3, images: int = 3) -> None:
    """`number` attempts on the cell fail for reasons of the system, one after the other."""
    made = [
        loop.submit(name=f"job-{n}", image=f"image-{n % images}", retries={"system": 1000})
        for n in range(jobs)
    ]
    for n in range(number):
        Task.objects.update(not_before=None, avoid_cell_ids=None)
        loop.place()
        job = made[n % jobs]
        attempt = Attempt.objects.get(job=job, released_at=None)
        cell.end(
            attempt,
            S.FAILED,
            failure_kind=FailureKind.SYSTEM,
            reason="engine",
            message="the engine does not answer",
        )


def test_ten_consecutive_system_failures_quarantine_a_cell(loop: Loop) -> None:
    cell = loop.cell(cpu=100_000)
    fail(loop, cell, 9)
    assert "cells_avoided" not in loop.converge()
    job = Job.objects.order_by("pk").first()
    Task.objects.update(not_before=None, avoid_cell_ids=None)
    loop.place()
    attempt = Attempt.objects.filter(job=job, released_at=None).get()
    cell.end(attempt, S.FAILED, failure_kind=FailureKind.SYSTEM, reason="engine")
    assert loop.converge()["cells_avoided"] == 1
    found = Cell.objects.get()
    assert (found.state, found.quarantined_for) == ("QUARANTINED", "failures")
    assert found.quarantined_until is not None
    assert found.quarantined_until - clock.now() > timedelta(seconds=590)
    assert Alert.objects.get(cleared_at=None).kind == "cell_failing"
    assert "cells_cleared" not in loop.converge()
    Cell.objects.update(quarantined_until=clock.now())
    assert loop.converge()["cells_cleared"] == 1
    assert state() == "READY"
    assert not Alert.objects.filter(cleared_at=None).exists()
    # It has a fresh start.
    assert "cells_avoided" not in loop.converge()


@pytest.mark.parametrize(("jobs", "images"), [(2, 2), (3, 2)])
def test_failures_of_few_jobs_or_images_do_not_quarantine_a_cell(
    loop: Loop, jobs: int, images: int
) -> None:
    cell = loop.cell(cpu=100_000)
    fail(loop, cell, 12, jobs=jobs, images=images)
    assert "cells_avoided" not in loop.converge()
    assert state() == "READY"


def test_running_attempt_resets_the_failure_count(loop: Loop) -> None:
    cell = loop.cell(cpu=100_000)
    fail(loop, cell, 5)
    _, attempt = begun(loop, cell, name="well")
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    fail(loop, cell, 5)
    assert "cells_avoided" not in loop.converge()


@pytest.mark.parametrize("works", [True, False])
def test_failing_cells_query_does_not_read_old_attempts(loop: Loop, works: bool) -> None:
    cell = loop.cell(cpu=100_000)
    _, attempt = begun(loop, cell, name="well")
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    if not works:
        fail(loop, cell, 10)
    for number in range(50):
        loop.cell(f"other-{number}")
    begin_long_ago(attempt, 20_000)
    with connection.cursor() as cursor:
        # As autovacuum does. Else the plan may rest on statistics of another test's attempts, which
        # outlast TRUNCATE: if nearly all of those had failed, the plan reads all of these.
        cursor.execute("ANALYZE controlplane_attempt")
        statement = f"SELECT EXISTS (SELECT 1 {SOURCES['failing_cells']})"
        cursor.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}",
            parameters_of(clock.now(), None, Policy()),
        )
        [(plans,)] = cursor.fetchall()
    [plan] = json.loads(plans) if isinstance(plans, str) else plans
    assert rows_read(plan["Plan"], "controlplane_attempt") < 2_000
    assert ("cells_avoided" in loop.converge()) is not works


def begin_long_ago(attempt: Attempt, number: int) -> None:
    """So many attempts like that one on 50 cells, over before any other was begun; 1% failed."""
    names = [field.column for field in Attempt._meta.concrete_fields]
    new = {"uid": "('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid", "number": "n + 9"}
    new["cell_id"] = "cell_id + n %% 50"
    new["failure_kind"] = "CASE WHEN n %% 100 = 0 THEN 'system' ELSE '' END"
    new["started_at"] = "CASE WHEN n %% 100 = 0 THEN NULL ELSE started_at END"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO controlplane_attempt ({', '.join(names)})"
            f" SELECT {', '.join(new.get(name, name) for name in names)}"
            " FROM controlplane_attempt, generate_series(1, %s) n WHERE uid = %s",
            [number, attempt.uid],
        )


def rows_read(plan: dict[str, Any], table: str) -> int:
    """Return how many rows of a table were read, in a plan that was carried out."""
    read = 0
    if plan.get("Relation Name") == table:
        seen = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        read = round(plan["Actual Loops"] * seen)
    return read + sum(rows_read(part, table) for part in plan.get("Plans", ()))


def test_an_operator_lifts_a_quarantine(loop: Loop) -> None:
    cell = loop.cell(cpu=100_000)
    ORDERS["CORDONED"]()
    uncordon_cell(name="cell-1", actor="me", now=clock.now())
    fail(loop, cell, 10)
    loop.converge()
    assert state() == "QUARANTINED"
    unquarantine_cell(name="cell-1", actor="me", now=clock.now())
    assert state() == "READY"
    assert not Alert.objects.filter(cleared_at=None).exists()
    assert "cells_avoided" not in loop.converge()


def put_aside(loop: Loop, cell: FakeCell) -> None:
    """Everything fails there; the alert of it is open."""
    fail(loop, cell, 10)
    assert loop.converge()["cells_avoided"] == 1
    assert open_alerts() == ["cell_failing"]


def open_alerts() -> list[str]:
    return [alert.kind for alert in Alert.objects.filter(cleared_at=None).order_by("kind")]


def test_uncordoned_cell_is_not_quarantined_for_earlier_failures(loop: Loop) -> None:
    put_aside(loop, loop.cell(cpu=100_000))
    uncordon_cell(name="cell-1", actor="me", now=clock.now())
    assert "cells_avoided" not in loop.converge()
    assert (state(), open_alerts()) == ("READY", [])


def test_returning_cell_is_not_quarantined_for_earlier_failures(loop: Loop) -> None:
    cell = loop.cell(cpu=100_000)
    put_aside(loop, cell)
    lose(loop)
    assert open_alerts() == ["cell_lost"]
    come_back(cell)
    assert "cells_avoided" not in loop.converge()
    assert (state(), open_alerts()) == ("READY", [])


@pytest.mark.parametrize("ordered", ORDERS)
def test_operator_order_closes_the_quarantine_alert(loop: Loop, ordered: str) -> None:
    put_aside(loop, loop.cell(cpu=100_000))
    ORDERS[ordered]()
    assert (state(), open_alerts()) == (ordered, [])


def test_cordoned_cell_is_cordoned_again_after_its_stop_quarantine(loop: Loop) -> None:
    cell = loop.cell()
    job, attempt = begun(loop, cell)
    ORDERS["CORDONED"]()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    long_ago = clock.now() - timedelta(seconds=Policy().stop_patience + 20)
    begun_at = dict.fromkeys(("created_at", "started_at", "finished_at"), long_ago)
    Attempt.objects.update(**begun_at, stop_forced_at=long_ago)
    assert loop.converge()["cells_suspected"] == 1
    assert state() == "QUARANTINED"
    cell.end(attempt, S.KILLED)
    assert loop.converge()["cells_cleared"] == 1
    assert state() == "CORDONED"


# -------------------------------------------------------------- what a cell reports of itself


def test_cell_that_reports_unfit_gets_no_work_until_it_is_fit(loop: Loop) -> None:
    cell = loop.cell()
    cell.send(Heartbeat((), unfit="the disk of its folder is full").body())
    shown = get_cell("cell-1")
    assert (shown["state"], shown["state_reason"]) == (
        "QUARANTINED",
        "the disk of its folder is full",
    )
    loop.submit()
    loop.place()
    assert cell.run_orders() == []
    assert "cells_cleared" not in loop.converge()
    cell.register()
    assert get_cell("cell-1")["state_reason"] == "the disk of its folder is full"
    cell.beat()
    assert state() == "READY"
    loop.place()
    assert len(cell.run_orders()) == 1


def test_heartbeat_does_not_lift_a_stop_quarantine(loop: Loop) -> None:
    cell = loop.cell()
    Cell.objects.update(state="QUARANTINED", quarantined_for="stops")
    cell.beat()
    assert state() == "QUARANTINED"


def test_unfit_cordoned_cell_stays_cordoned(loop: Loop) -> None:
    cell = loop.cell()
    ORDERS["CORDONED"]()
    cell.send(Heartbeat((), unfit="full").body())
    assert state() == "CORDONED"


def test_clock_offset_of_a_cell_is_shown(loop: Loop) -> None:
    cell = loop.cell()
    assert get_cell("cell-1")["clock_ahead_seconds"] is None
    cell.send(Heartbeat((), clock_ahead=-3.5).body())
    assert get_cell("cell-1")["clock_ahead_seconds"] == -3.5
    cell.beat()
    assert get_cell("cell-1")["clock_ahead_seconds"] == -3.5


def test_departed_cell_is_cordoned_until_it_registers_again(loop: Loop) -> None:
    cell = loop.cell()
    cell.send(Goodbye(0).body())
    assert (state(), get_cell("cell-1")["state_reason"]) == (
        "CORDONED",
        "it has left, and named no successor",
    )
    loop.submit()
    loop.place()
    assert cell.run_orders() == []
    cell.register()
    assert state() == "READY"


def test_cell_restored_before_its_goodbye_arrives_takes_work_at_its_next_heartbeat(
    loop: Loop,
) -> None:
    """The goodbye of the process before is delayed; the restored one draws the same numbers."""
    cell = loop.cell()
    cell.register()
    cell.send(Goodbye(0).body())
    assert state() == "CORDONED"
    cell.seq -= 1
    cell.beat()
    assert state() == "CORDONED"
    cell.beat()
    assert state() == "READY"
    loop.submit()
    loop.place()
    assert len(cell.run_orders()) == 1


def test_heartbeat_does_not_end_the_cordon_of_an_operator(loop: Loop) -> None:
    cell = loop.cell()
    ORDERS["CORDONED"]()
    cell.send(Goodbye(0).body())
    cell.beat()
    assert state() == "CORDONED"


def test_heartbeat_does_not_end_the_cordon_of_an_unsupported_cell(loop: Loop) -> None:
    cell = loop.cell()
    reason = "cordoned: its wire version is no longer supported"
    Cell.objects.update(state="CORDONED", state_reason=reason)
    cell.send(Goodbye(0).body())
    cell.beat()
    assert (state(), get_cell("cell-1")["state_reason"]) == ("CORDONED", reason)


def test_goodbye_with_an_expected_successor_keeps_the_cell_state(loop: Loop) -> None:
    cell = loop.cell()
    cell.send(Goodbye(120).body())
    assert state() == "READY"


def test_stale_goodbye_is_ignored(loop: Loop) -> None:
    cell = loop.cell()
    cell.beat()
    CellLease.objects.update(heartbeat_seq=100)
    cell.send(Goodbye(0).body())
    assert state() == "READY"
