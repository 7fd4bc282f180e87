"""The totals of usage contain each attempt of a settled job once, whatever process dies."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from controlplane import clock
from controlplane.commands.attempts import usage
from controlplane.commands.attempts.usage import count_usage
from controlplane.commands.convergence.rules import RULES
from controlplane.commands.retention import purge
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Task, UsageTotal
from controlplane.queries.convergence.due import find_due
from controlplane.queries.policy import load_policy
from controlplane.queries.sql import execute
from tests.integration.callbacks.conftest import until_it_waits
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.deaths import at_statement, work_until_death

BEGAN = datetime(2031, 5, 4, 12, tzinfo=UTC)
# Sums of these are exact in binary.
HELD = timedelta(seconds=100)


def never() -> bool:
    return False


@pytest.fixture
def cell(loop: Loop, many_slots: None) -> FakeCell:
    return loop.cell(cpu=1_000_000, memory=1_000_000)


def ended(loop: Loop, cell: FakeCell, *, used: Mapping[str, Any] | None, **body: Any) -> Job:
    """A job whose attempts were created at `BEGAN`, released 100 s later, and used that."""
    job = loop.submit(**body)
    loop.place()
    for attempt in loop.attempts(job):
        cell.end(attempt, S.SUCCEEDED, exit_code=0, usage=used)
    times = {"created_at": BEGAN, "finished_at": BEGAN + HELD, "released_at": BEGAN + HELD}
    Attempt.objects.filter(job=job).update(**times)
    settle(job)
    return job


def settle(job: Job) -> None:
    """Settle the job, as convergence does when its last attempt is released."""
    Job.objects.filter(pk=job.pk, settled_at=None).update(settled_at=clock.now())


def totals() -> dict[tuple[str, str], UsageTotal]:
    return {(str(it.month), it.job_name): it for it in UsageTotal.objects.all()}


def counted_attempts() -> int:
    return sum(UsageTotal.objects.values_list("attempts", flat=True))


def delete(job: Job) -> None:
    """Hide the job: the next purge deletes it."""
    now = clock.now()
    Task.objects.filter(job=job).update(attempt_open=False)
    Job.objects.filter(pk=job.pk).update(settled_at=now, deleted_at=now)


def test_tick_counts_what_attempts_requested_and_used(loop: Loop, cell: FakeCell) -> None:
    """Two attempts hold 2 cores and 128 MiB for 100 s, and use 50 s of CPU time and 32 MiB each."""
    resources = {"cpu": 2, "memory": "128Mi"}
    used = {"cpu_seconds": 50.0, "memory_peak_mib": 32.0}
    ended(loop, cell, used=used, name="train", replicas=2, resources=resources)
    assert loop.converge()["usage_counted"] == 1
    [total] = UsageTotal.objects.select_related("project")
    assert (total.month, total.job_name, total.owner) == (date(2031, 5, 1), "train", "owner")
    assert str(total.project) == "default/default"
    assert (total.attempts, total.unmeasured_attempts) == (2, 0)
    assert (total.cpu_seconds_requested, total.cpu_seconds_used) == (2 * 2 * 100, 2 * 50)
    assert total.cpu_seconds_measured == 400
    assert total.memory_mib_seconds_requested == 2 * 128 * 100
    assert total.memory_mib_seconds_used == 2 * 32 * 100
    assert (total.memory_peak_mib, total.gpu_seconds_requested) == (32, 0)
    assert "usage_counted" not in loop.converge()


def test_later_attempts_are_added_to_the_total_of_their_job_name(
    loop: Loop, cell: FakeCell
) -> None:
    for peak in (32.0, 48.0, 16.0):
        ended(loop, cell, used={"cpu_seconds": 25.0, "memory_peak_mib": peak}, name="train")
        loop.converge()
    [total] = UsageTotal.objects.all()
    assert (total.attempts, total.memory_peak_mib, total.cpu_seconds_used) == (3, 48, 75)
    assert total.cpu_seconds_requested == 3 * 100


def test_graphics_processors_count_as_requested_for_the_whole_time(
    loop: Loop, cell: FakeCell
) -> None:
    job = ended(loop, cell, used={"cpu_seconds": 1.0}, name="train")
    job.groups.update(resources={"cpu_millis": 500, "gpu": 2})
    loop.converge()
    [total] = UsageTotal.objects.all()
    assert (total.gpu_seconds_requested, total.cpu_seconds_requested) == (200, 50)
    assert total.memory_mib_seconds_requested == 0


def test_month_is_that_of_the_release_in_utc(loop: Loop, cell: FakeCell) -> None:
    """Created in April and released in the first second of May, which is April in New York."""
    job = ended(loop, cell, used=None)
    may = datetime(2031, 5, 1, tzinfo=UTC)
    Attempt.objects.filter(job=job).update(
        created_at=may - timedelta(seconds=50), finished_at=may, released_at=may
    )
    other = ended(loop, cell, used=None, name="other")
    before = may - timedelta(microseconds=1)
    Attempt.objects.filter(job=other).update(
        created_at=may - timedelta(days=1), finished_at=before, released_at=before
    )
    with transaction.atomic():
        execute("SET LOCAL TimeZone = 'America/New_York'")
        count_usage(never)
    found = totals()
    assert set(found) == {("2031-05-01", "job"), ("2031-04-01", "other")}
    assert found["2031-05-01", "job"].cpu_seconds_requested == 50


def test_attempt_without_a_measurement_is_no_waste(loop: Loop, cell: FakeCell) -> None:
    ended(loop, cell, used=None, name="train")
    ended(loop, cell, used={"memory_peak_mib": 32.0}, name="train")
    ended(loop, cell, used={"cpu_seconds": 10.0}, name="train")
    loop.converge()
    [total] = UsageTotal.objects.all()
    assert (total.attempts, total.unmeasured_attempts) == (3, 2)
    assert (total.cpu_seconds_requested, total.cpu_seconds_measured) == (300, 100)
    assert (total.memory_mib_seconds_requested, total.memory_mib_seconds_measured) == (19200, 6400)


@pytest.mark.parametrize("figure", [{"cpu_seconds": 2.0**53}, {"memory_peak_mib": 2.0**53}])
def test_impossible_figure_of_a_cell_is_no_measurement(
    loop: Loop, cell: FakeCell, figure: dict[str, float]
) -> None:
    good = {"cpu_seconds": 10.0, "memory_peak_mib": 32.0}
    ended(loop, cell, used=good | figure, name="train")
    ended(loop, cell, used=good, name="train")
    loop.converge()
    [total] = UsageTotal.objects.all()
    assert total.cpu_seconds_used == (10 if "cpu_seconds" in figure else 20)
    assert total.memory_peak_mib == 32
    assert total.unmeasured_attempts == ("cpu_seconds" in figure)


def test_job_is_counted_once_it_is_settled(loop: Loop, cell: FakeCell) -> None:
    job = loop.submit(replicas=2)
    loop.place()
    first, second = loop.attempts(job)
    cell.end(first, S.SUCCEEDED, exit_code=0)
    assert "usage_counted" not in loop.converge()
    cell.end(second, S.SUCCEEDED, exit_code=0)
    loop.converge()
    assert counted_attempts() == 2


def test_at_most_a_thousand_job_names_of_a_user_have_totals_of_their_own(
    loop: Loop, cell: FakeCell
) -> None:
    job = ended(loop, cell, used={"cpu_seconds": 1.0}, name="known")
    loop.converge()
    made = [
        UsageTotal(month=date(2031, 5, 1), project=job.project, owner="owner", job_name=f"run-{n}")
        for n in range(997)
    ]
    others = [
        UsageTotal(month=date(2031, month, 1), project=job.project, owner=owner, job_name="x")
        for month, owner in ((4, "owner"), (5, "ann"))
    ]
    UsageTotal.objects.bulk_create([*made, *others])
    for name in ("new-a", "new-b", "new-c", "new-d", "known"):
        ended(loop, cell, used={"cpu_seconds": 1.0}, name=name)
    loop.converge()
    found = totals()
    assert UsageTotal.objects.filter(month=date(2031, 5, 1), owner="owner").count() == 1001
    assert {name for _, name in found if name.startswith("new")} == {"new-a", "new-b"}
    assert found["2031-05-01", ""].attempts == 2
    assert found["2031-05-01", "known"].attempts == 2
    ended(loop, cell, used={"cpu_seconds": 1.0}, name="new-e")
    loop.converge()
    assert totals()["2031-05-01", ""].attempts == 3


def test_deletion_of_a_job_counts_what_no_tick_has_counted(loop: Loop, cell: FakeCell) -> None:
    job = ended(loop, cell, used={"cpu_seconds": 10.0}, replicas=3)
    delete(job)
    purge.purge_deleted(never)
    assert not Attempt.objects.exists()
    assert (counted_attempts(), totals()["2031-05-01", "job"].cpu_seconds_used) == (3, 30)
    count_usage(never)
    assert counted_attempts() == 3


@pytest.mark.parametrize("delete_first", [False, True], ids=["tick", "purge"])
def test_death_at_any_statement_neither_loses_an_attempt_nor_counts_it_twice(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch, delete_first: bool
) -> None:
    """Jobs of seven and of two attempts: a tick or a purge dies at each of its statements."""
    monkeypatch.setattr(usage, "PAGE", 2)
    monkeypatch.setattr(purge, "PAGE", 2)

    def work() -> None:
        count_usage(never)
        purge.purge_deleted(never)

    deaths = 0
    while True:
        names = {f"large-{deaths}": 7, f"small-{deaths}": 2}
        jobs = [
            ended(loop, cell, used={"cpu_seconds": 10.0}, name=name, replicas=count)
            for name, count in names.items()
        ]
        if delete_first:
            for job in jobs:
                delete(job)
        death = work_until_death(
            purge_only if delete_first else work, at_statement(deaths, containing="")
        )
        for job in jobs:
            delete(job)
        work()
        assert not Attempt.objects.exists()
        for name, count in names.items():
            total = totals()["2031-05-01", name]
            assert (total.attempts, total.cpu_seconds_used) == (count, 10 * count), death.before
        if death.before is None:
            break
        deaths += 1
    assert deaths > 5


def purge_only() -> None:
    purge.purge_deleted(never)


def test_ticks_and_purges_at_once_count_each_attempt_once(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "PAGE", 3)
    monkeypatch.setattr(purge, "PAGE", 4)
    jobs = [
        ended(loop, cell, used={"cpu_seconds": 10.0}, name=f"n{n}", replicas=20) for n in range(4)
    ]
    for job in jobs[:2]:
        delete(job)

    def run(work: Any) -> None:
        try:
            work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        works = [lambda: count_usage(never), purge_only] * 2
        for done in [threads.submit(run, work) for work in works]:
            done.result(timeout=120)
    count_usage(never)
    purge_only()
    assert {total.attempts for total in totals().values()} == {20}
    assert Attempt.objects.count() == 40


def test_count_skips_a_job_that_another_transaction_holds(loop: Loop, cell: FakeCell) -> None:
    held, free = (ended(loop, cell, used=None, name=name) for name in ("held", "free"))

    def count() -> int:
        try:
            return count_usage(never)["usage_counted"]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            list(Job.objects.select_for_update(no_key=True).filter(pk=held.pk))
            assert thread.submit(count).result(timeout=60) == 1
        assert thread.submit(count).result(timeout=60) == 1
    assert {name for _, name in totals()} == {"held", "free"} == {held.name, free.name}


def test_purge_waits_for_a_job_that_another_transaction_holds(loop: Loop, cell: FakeCell) -> None:
    """Otherwise it would delete attempts that are not counted."""
    job = ended(loop, cell, used=None)
    delete(job)

    def run() -> None:
        try:
            purge_only()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            list(Job.objects.select_for_update(no_key=True).filter(pk=job.pk))
            done = thread.submit(run)
            until_it_waits(done)
        done.result(timeout=60)
    assert (counted_attempts(), Attempt.objects.count()) == (1, 0)


def test_totals_are_deleted_after_their_months(loop: Loop, cell: FakeCell) -> None:
    """Kept are this month and the 24 before."""
    job = ended(loop, cell, used=None)
    this_month = clock.now().date().replace(day=1)
    place = this_month.year * 12 + this_month.month - 1
    months = {
        age: date((place - age) // 12, (place - age) % 12 + 1, 1) for age in (0, 23, 24, 25, 26)
    }
    UsageTotal.objects.bulk_create(
        UsageTotal(month=month, project=job.project, owner="owner", job_name="x")
        for month in months.values()
    )
    assert "old_records" in find_due(clock.now(), None, load_policy())
    loop.converge()
    left = set(UsageTotal.objects.filter(job_name="x").values_list("month", flat=True))
    assert left == {months[0], months[23], months[24]}


def test_usage_is_counted_before_jobs_are_deleted() -> None:
    names = [rule.name for rule in RULES]
    assert names.index("usage") < names.index("deletion")
