"""Jobs whose handling fails each time: those behind them have their turn all the same."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.convergence import job_pages, repairs
from controlplane.commands.convergence import jobs as cascades
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.jobs import cancel as pages
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.policy import Policy
from controlplane.models import Alert, Job, Walk
from controlplane.queries import locks
from controlplane.queries.convergence.due import list_jobs_with
from controlplane.ticks import convergence
from tests.integration.loop.conftest import Loop

SMALL = {"image": "x", "command": ["true"], "resources": {"cpu": 1, "memory": "64Mi"}}
PAGE = 3

pytestmark = pytest.mark.usefixtures("many_slots")

Poison = Callable[[Sequence[Job]], None]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """From now on the handling of these jobs fails, and of no others. A page has three jobs."""
    poisoned: set[int] = set()

    def lock_jobs(job_ids: Sequence[int], *options: Any, **named: Any) -> Any:
        if poisoned & set(job_ids):
            raise ValueError("poisoned")
        return locks.lock_jobs(job_ids, *options, **named)

    for module in (cascades, pages, repairs):
        monkeypatch.setattr(module, "lock_jobs", lock_jobs)
    for module in (job_pages, cascades):
        monkeypatch.setattr(module, "JOBS_PER_TICK", PAGE)

    def mark(jobs: Sequence[Job]) -> None:
        poisoned.clear()
        poisoned.update(job.pk for job in jobs)

    return mark


def blocked_jobs(loop: Loop, count: int) -> list[Job]:
    """Create jobs whose dependency is met, before they are unblocked."""
    cell, first = loop.cell(), loop.submit(name="first")
    depends_on = [{"job": first.pk}]
    jobs = [loop.submit(name=f"j{n}", depends_on=depends_on) for n in range(count)]
    loop.place()
    cell.end(loop.attempts(first)[0], S.SUCCEEDED, exit_code=0)
    return jobs


def waiting_jobs(loop: Loop, count: int) -> list[Job]:
    """Jobs with a group that waits in vain for another."""
    both = [{"group": "a"}, {"group": "b"}]
    groups: list[dict[str, object]] = [{"name": name, **SMALL} for name in "ab"]
    groups.append({"name": "c", "depends_on": both, **SMALL})
    cell = loop.cell(cpu=16_000)
    jobs = [loop.submit(max_task_failures=1, groups=groups) for _ in range(count)]
    loop.place()
    for job in jobs:
        cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    return jobs


def orphaned_jobs(loop: Loop, count: int) -> list[Job]:
    """Children of a job that was cancelled."""
    parent = loop.submit(name="parent")
    jobs = [loop.submit(name=f"j{n}", parent=parent.pk) for n in range(count)]
    cancel_job(job_id=parent.pk, reason="", force=False, actor="me", now=clock.now())
    return jobs


def requeuing_jobs(loop: Loop, count: int) -> list[Job]:
    """Gangs that have a place and must go back to wait."""
    loop.cell(cpu=16_000)
    jobs = [loop.submit(coscheduled=True, replicas=2) for _ in range(count)]
    loop.place()
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(is_requeuing=True)
    return jobs


def ending_jobs(loop: Loop, count: int) -> list[Job]:
    """Jobs that were cancelled, of which only one task has been ended."""
    jobs = [loop.submit(replicas=3) for _ in range(count)]
    for job in jobs:
        cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    return jobs


MAKERS = (blocked_jobs, waiting_jobs, orphaned_jobs, requeuing_jobs, ending_jobs)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_page_of_failing_jobs_does_not_hide_later_jobs(
    loop: Loop, poison: Poison, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 1)
    work = make.__name__
    jobs = make(loop, PAGE + 2)
    poison(jobs[:PAGE])
    ids = [job.pk for job in jobs]
    assert list_jobs_with(work, 9) == ids
    convergence.run(woken=True)
    assert list_jobs_with(work, 9) == ids  # three were tried, and all of them failed
    convergence.run(woken=True)
    assert list_jobs_with(work, 9) == ids[:PAGE]
    about = Alert.objects.filter(kind="job_skipped", cleared_at=None)
    assert {alert.subject.rsplit(" ", 1)[1] for alert in about} == {str(pk) for pk in ids[:PAGE]}
    poison([])
    convergence.run(woken=True)
    convergence.run(woken=True)
    assert list_jobs_with(work, 9) == []


def test_jobs_that_fail_to_settle_do_not_hide_later_jobs(loop: Loop, poison: Poison) -> None:
    jobs = [loop.submit() for _ in range(PAGE + 1)]
    for job in jobs:
        cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    Job.objects.update(settled_at=None)
    poison(jobs[:PAGE])
    context = RuleContext(clock.now(), Policy(), frozenset())
    for _ in range(2):
        repairs.settle(context)
    assert list_jobs_with("unsettled_jobs", 9) == [job.pk for job in jobs[:PAGE]]


def test_partly_failing_generation_does_not_stop_the_cascade(loop: Loop, poison: Poison) -> None:
    parent = loop.submit(name="parent")
    line = [loop.submit(name=f"j{n}", parent=parent.pk) for n in range(2)]
    for _ in range(2):
        line.append(loop.submit(parent=line[-1].pk))
    cancel_job(job_id=parent.pk, reason="", force=False, actor="me", now=clock.now())
    poison(line[:1])
    assert convergence.run(woken=True)["orphaned"] == len(line) - 1
    assert list_jobs_with("orphaned_jobs", 9) == [line[0].pk]
    assert Alert.objects.get(kind="job_skipped", cleared_at=None).subject.endswith(str(line[0].pk))


def test_jobs_over_the_page_limit_come_first_in_the_next_tick(
    loop: Loop, poison: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE", 1)
    monkeypatch.setattr(cascades, "PAGES_PER_TICK", 3)
    poison([])
    jobs = ending_jobs(loop, PAGE + 1)
    assert convergence.run(woken=True)["ended"] == 3
    assert list_jobs_with("ending_jobs", 9) == [job.pk for job in jobs[1:]]
    assert Walk.objects.get(name="ending_jobs").after == str(jobs[0].pk)
    for _ in range(2):
        convergence.run(woken=True)
    assert list_jobs_with("ending_jobs", 9) == []
