"""Samples of pools: every 15 seconds, each change counted once, for a day."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F, Sum
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.convergence import samples
from controlplane.commands.jobs.holds import hold_job
from controlplane.commands.tenancy.pools import put_pool
from controlplane.commands.tenancy.quotas import put_quota
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.latencies import bucket_of
from controlplane.domain.roles import Role
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.models import (
    Attempt,
    Cell,
    CellSample,
    Job,
    Pool,
    PoolSample,
    Shape,
    Task,
    TaskGroup,
    TickRun,
    Walk,
)
from controlplane.queries.sql import execute
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.deaths import at_statement, work_until_death
from tests.integration.loop.everything import ago


@pytest.fixture
def cell(loop: Loop) -> FakeCell:
    return loop.cell()


def sample(loop: Loop, pool: str = "default") -> PoolSample:
    """Return the sample of a pool that a tick takes as if 15 seconds had passed."""
    age_cursor(15)
    loop.converge()
    return PoolSample.objects.filter(pool__name=pool).latest("id")


def age_cursor(seconds: float) -> None:
    Walk.objects.filter(name="samples").update(
        scanned_at=F("scanned_at") - timedelta(seconds=seconds)
    )


def counted(loop: Loop) -> PoolSample:
    """Return the sample with the changes up to now, which the one before leaves to it."""
    sample(loop)
    return sample(loop)


def run_to(cell: FakeCell, attempt: Attempt, state: S, **facts: Any) -> None:
    """Let the program of an attempt run, and end in a state."""
    cell.report(cell_report(attempt))
    cell.end(attempt, state, **facts)


def cell_report(attempt: Attempt) -> AttemptReport:
    return AttemptReport(str(attempt.uid), 0, S.RUNNING)


def totals() -> dict[str, int]:
    names = ("started", "succeeded", "failed", "killed")
    return PoolSample.objects.aggregate(**{name: Sum(name) for name in names})


@pytest.mark.parametrize("band", [0, 7])
def test_tasks_with_invalid_bands_are_not_in_samples(loop: Loop, band: int) -> None:
    loop.submit()
    assert sum(sample(loop).waiting) == 1
    Shape.objects.update(band=band)
    assert sample(loop).waiting == [0, 0, 0]


def test_a_pool_is_sampled_every_15_seconds_and_its_tick_is_not_recorded(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool.objects.create(name="gpu")
    began = clock.now()
    monkeypatch.setattr(clock, "now", lambda: began)
    loop.converge()
    assert PoolSample.objects.count() == 2
    runs = TickRun.objects.count()
    monkeypatch.setattr(clock, "now", lambda: began + timedelta(seconds=12))
    loop.converge()
    assert PoolSample.objects.count() == 2
    monkeypatch.setattr(clock, "now", lambda: began + timedelta(seconds=15))
    loop.converge()
    assert PoolSample.objects.count() == 4
    assert TickRun.objects.count() == runs


def test_open_work_is_counted_by_band_and_what_fits_no_cell_is_stuck(
    loop: Loop, cell: FakeCell
) -> None:
    loop.submit(replicas=3, band="batch")
    loop.submit(replicas=2, band="production", resources={"cpu": 1, "memory": "64Mi"})
    loop.submit(name="huge", resources={"cpu": 99, "memory": "64Mi"}, allow_unsatisfiable=True)
    loop.place()
    found = sample(loop)
    assert (found.held, found.waiting, found.stuck) == ([2, 0, 2], [0, 1, 1], [0, 1, 0])
    assert found.used["cpu_millis"] == found.capacity["cpu_millis"] == 4000
    assert (found.used["memory_mib"], found.capacity["memory_mib"]) == (256, 4096)


def test_only_ready_cells_have_capacity_and_pools_are_counted_apart(
    loop: Loop, cell: FakeCell
) -> None:
    put_pool(name="gpu", changes={})
    loop.submit(replicas=1)
    loop.place()
    execute("UPDATE controlplane_cell SET ordered_state = 'CORDONED', state = 'CORDONED'")
    found = sample(loop)
    assert (found.capacity, found.used["cpu_millis"]) == ({}, 1000)
    other = PoolSample.objects.filter(pool__name="gpu").latest("id")
    assert (other.held, other.used, other.started) == ([0, 0, 0], {}, 0)


def test_wanted_is_what_runs_and_what_waits_for_capacity(loop: Loop, cell: FakeCell) -> None:
    loop.submit(replicas=6)
    loop.place()
    found = sample(loop)
    assert found.held == [0, 4, 0]
    assert (found.wanted["cpu_millis"], found.wanted["memory_mib"]) == (6000, 6 * 64)
    loop.submit(replicas=2)  # placement has not considered them yet
    assert sample(loop).wanted["cpu_millis"] == 8000


def test_pool_without_cells_wants_the_capacity_of_what_waits(loop: Loop) -> None:
    loop.submit(replicas=3, resources={"cpu": 2, "memory": "1Gi", "gpu": 1})
    loop.place()
    found = sample(loop)
    assert found.wanted == {"cpu_millis": 6000, "memory_mib": 3072, "gpu": 3}
    assert found.stuck == [0, 3, 0]


def test_gang_that_does_not_fit_as_a_whole_is_wanted(loop: Loop, cell: FakeCell) -> None:
    loop.submit(replicas=6, coscheduled=True, allow_unsatisfiable=True)
    loop.place()
    found = sample(loop)
    assert (found.held, found.wanted["cpu_millis"]) == ([0, 0, 0], 6000)


def test_work_that_more_cells_cannot_run_is_not_wanted(loop: Loop, cell: FakeCell) -> None:
    loop.submit(name="large", resources={"cpu": 99, "memory": "64Mi"}, allow_unsatisfiable=True)
    zone = [{"key": "zone", "op": "eq", "values": ["b"]}]
    loop.submit(name="elsewhere", constraints=zone, allow_unsatisfiable=True)
    held = loop.submit(name="held")
    hold_job(job_id=held.pk, reason="wrong data", role=Role.OPERATOR, actor="ann", now=clock.now())
    part = {"image": "x", "command": ["true"], "resources": {"cpu": 1, "memory": "64Mi"}}
    loop.submit(
        name="staged",
        groups=[
            {"name": "first", **part},
            {"name": "second", **part, "replicas": 9, "depends_on": [{"group": "first"}]},
        ],
    )
    loop.submit(name="later", start_after=(clock.now() + timedelta(hours=1)).isoformat())
    backing = loop.submit(name="backing-off")
    execute(
        "UPDATE controlplane_task SET not_before = %s WHERE job_id = %s", [ago(-60), backing.pk]
    )
    loop.place()
    scope = Scope(ScopeKind.USER, loop.owner.pk)
    put_quota(scope=scope, changes={"resources": {"cpu_millis": 1000}})
    loop.submit(name="over-quota", replicas=5)
    loop.place()
    found = sample(loop)
    assert found.held == [0, 1, 0]
    assert found.wanted["cpu_millis"] == 1000  # the first group of the staged job, which runs


def test_ends_are_counted_by_outcome_and_failures_by_reason_with_their_jobs(
    loop: Loop, cell: FakeCell
) -> None:
    loop.converge()
    job = loop.submit(replicas=3, max_task_failures=3)
    other = loop.submit(name="other", retries={"failure": 1})
    loop.place()
    first, second, third = loop.attempts(job)
    run_to(cell, first, S.SUCCEEDED, exit_code=0)
    run_to(cell, second, S.FAILED, exit_code=3)
    run_to(cell, third, S.FAILED, exit_code=3)
    [attempt] = loop.attempts(other)
    run_to(cell, attempt, S.FAILED, exit_code=3)
    assert loop.states(other) == ["PENDING"]
    found = counted(loop)
    assert (found.started, found.succeeded, found.failed, found.killed) == (4, 1, 2, 0)
    assert found.failures == {"exit_status": {"tasks": 2, "retried": 1, "jobs": [other.pk, job.pk]}}


def test_the_latency_is_from_when_a_task_could_start_to_its_first_start(
    loop: Loop, cell: FakeCell
) -> None:
    loop.converge()
    job = loop.submit(replicas=2, retries={"failure": 1})
    Job.objects.update(created_at=ago(3600))
    TaskGroup.objects.update(startable_at=ago(45))
    loop.place()
    first, _ = loop.attempts(job)
    run_to(cell, first, S.FAILED, exit_code=3)
    execute("UPDATE controlplane_task SET not_before = NULL")
    loop.place()
    cell.report(cell_report(loop.attempts(job)[1]))  # its second start
    found = counted(loop)
    assert found.started == 2
    assert found.latencies[bucket_of(45)] == sum(found.latencies) == 1


def test_each_change_is_counted_once_whatever_the_order_of_commits(
    loop: Loop, cell: FakeCell
) -> None:
    """The row with the lower id is committed after the sample that finds the higher one."""
    loop.converge()
    job = loop.submit(replicas=2)
    loop.place()
    first, second = loop.attempts(job)
    run_to(cell, first, S.SUCCEEDED, exit_code=0)
    late = "SELECT id FROM controlplane_transition WHERE to_state = 4 AND task_id = %s"
    execute(f"UPDATE controlplane_transition SET id = -id WHERE id = ({late})", [first.task_id])
    run_to(cell, second, S.SUCCEEDED, exit_code=0)
    sample(loop)
    execute("UPDATE controlplane_transition SET id = -id WHERE id < 0")
    for _ in range(3):
        sample(loop)
    assert totals() == {"started": 2, "succeeded": 2, "failed": 0, "killed": 0}


def test_a_long_history_is_counted_by_several_samples(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MAX_CHANGES", 3)
    loop.converge()
    job = loop.submit(replicas=4)
    loop.place()
    for attempt in loop.attempts(job):
        run_to(cell, attempt, S.SUCCEEDED, exit_code=0)
    found = [sample(loop).succeeded for _ in range(12)]
    assert max(found) < 4
    assert sum(found) == 4


def test_a_tick_killed_at_any_statement_counts_nothing_twice(loop: Loop, cell: FakeCell) -> None:
    loop.converge()
    job = loop.submit(replicas=2)
    loop.place()
    for attempt in loop.attempts(job):
        run_to(cell, attempt, S.SUCCEEDED, exit_code=0)
    sample(loop)
    for number in range(200):
        age_cursor(15)
        if work_until_death(loop.converge, at_statement(number)).before is None:
            break
    else:
        raise AssertionError("the tick never came to its end")
    sample(loop)
    assert totals()["succeeded"] == 2


def test_a_sample_reads_only_the_new_part_of_the_history(loop: Loop, cell: FakeCell) -> None:
    job = loop.submit(replicas=1)
    loop.place()
    copied = "job_id, task_id, attempt_uid, from_state, to_state, attempt_state, reason, message"
    execute(
        f"""
        INSERT INTO controlplane_transition ({copied}, actor, at)
        SELECT {copied}, actor, at FROM controlplane_transition, generate_series(1, 20000)
        WHERE task_id IS NOT NULL
        """
    )
    execute("ANALYZE controlplane_transition")
    loop.converge()
    run_to(cell, loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    sample(loop)
    plans: list[str] = []

    def explain(run: Callable[..., Any], sql: str, parameters: Any, *rest: Any) -> Any:
        if "WITH changed" in sql:
            with connection.cursor() as cursor:
                cursor.cursor.execute(f"EXPLAIN {sql}", parameters)
                plans.extend(line for (line,) in cursor.cursor.fetchall())
        return run(sql, parameters, *rest)

    with connection.execute_wrapper(explain):
        assert sample(loop).succeeded == 1
    assert plans
    assert not [line for line in plans if "Seq Scan on controlplane_transition" in line]


def test_samples_are_kept_for_a_day(loop: Loop) -> None:
    pool = Pool.objects.get(name="default")
    for over in (60, -60):
        PoolSample.objects.create(
            at=clock.now() - timedelta(days=1, seconds=over),
            pool=pool,
            waiting=[0, 0, 0],
            stuck=[0, 0, 0],
            held=[0, 0, 0],
            latencies=[],
        )
    loop.converge()
    assert PoolSample.objects.filter(latencies=[]).count() == 1


def cell_samples(name: str = "cell-1") -> list[CellSample]:
    return list(CellSample.objects.filter(cell__name=name).order_by("at"))


def test_cells_are_sampled_once_a_minute_with_used_and_reserved_amounts(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    minute = clock.now().replace(second=3, microsecond=0) + timedelta(minutes=1)
    loop.submit(replicas=3)
    loop.place()
    waiting = loop.submit(name="waiting", resources={"cpu": 4, "memory": "64Mi"})
    nominated = {"nominated_cell_id": Cell.objects.get().pk, "nominated_until": clock.now()}
    Task.objects.filter(job=waiting).update(**nominated)
    Task.objects.filter(job=waiting).update(nominated_until=minute + timedelta(hours=1))
    for seconds in (0, 15, 30, 45, 60):
        age_cursor(15)
        at = minute + timedelta(seconds=seconds)
        monkeypatch.setattr(clock, "now", lambda at=at: at)
        cell.beat()
        loop.converge()
    first, second = cell_samples()[-2:]
    assert second.at - first.at == timedelta(minutes=1)
    assert first.at == minute.replace(second=0)
    shown = (first.cpu_millis_used, first.cpu_millis_reserved, first.cpu_millis_capacity)
    # Of the reserved four cores, the running tasks leave one.
    assert shown == (3000, 1000, 4000)
    assert (first.memory_mib_used, first.memory_mib_capacity) == (192, 4096)
    assert (first.gpu_used, first.gpu_capacity) == (0, 0)


def test_a_lost_cell_has_no_samples(loop: Loop, cell: FakeCell) -> None:
    execute("UPDATE controlplane_cell SET state = 'LOST'")
    sample(loop)
    assert cell_samples() == []


def test_thousands_of_cells_are_sampled_with_the_same_statements(
    loop: Loop, cell: FakeCell
) -> None:
    def count_statements() -> int:
        CellSample.objects.all().delete()
        age_cursor(15)
        with CaptureQueriesContext(connection) as caught:
            loop.converge()
        return len([it for it in caught.captured_queries if "samples" not in it["sql"]])

    sample(loop)
    few = count_statements()
    template = Cell.objects.get()
    Cell.objects.bulk_create(
        Cell(
            name=f"copy-{number}",
            pool=template.pool,
            state="READY",
            ordered_state="READY",
            incarnation=f"copy-{number}",
            capacity=template.capacity,
            enrolled_at=clock.now(),
            key_salt="5a17",
        )
        for number in range(2000)
    )
    assert count_statements() == few
    assert CellSample.objects.count() == 2001


def test_samples_of_cells_are_kept_for_a_day(loop: Loop, cell: FakeCell) -> None:
    sample(loop)
    [kept] = cell_samples()
    kept.pk, kept.at = None, clock.now() - timedelta(days=1, seconds=60)
    kept.save()
    loop.converge()
    assert all(it.at > clock.now() - timedelta(days=1) for it in cell_samples())
    assert len(cell_samples()) >= 1
