"""A process that ends a job or requeues a gang dies at any statement: a tick finishes its work.

The cascade is the same for every way to end: what is cancelled here could have failed as well.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import pytest

from controlplane import clock
from controlplane.commands.convergence import jobs as cascades
from controlplane.commands.jobs import cancel as cancellation
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity import InvariantViolation, find_violations
from controlplane.models import Attempt, Job, Task, Transition
from controlplane.queries.integrity.invariants import load_cells, load_jobs
from controlplane.ticks import convergence
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.deaths import at_statement, work_until_death

PAGE, PAGES = 3, 5
TASKS = PAGE * PAGES
# One is never placed: it has no attempt, and nothing to stop.
PLACED = TASKS - 1
# What every page begins with.
JOB_LOCK = "FROM controlplane_job WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "PAGE", PAGE)


@pytest.fixture
def cell(loop: Loop, many_slots: None) -> FakeCell:
    return loop.cell(cpu=PLACED * 1000)


def cancel(job: Job) -> None:
    cancel_job(job_id=job.pk, reason="enough", force=False, actor="me", now=clock.now())


def converge(_: Job) -> None:
    convergence.run(woken=True)


def start_job(loop: Loop) -> list[Job]:
    job = loop.submit(replicas=TASKS)
    loop.place()
    assert Counter(loop.states(job)) == {"ASSIGNED": PLACED, "PENDING": 1}
    return [job]


def start_family(loop: Loop) -> list[Job]:
    """A job, its child and its child's child, of two pages each."""
    jobs = [loop.submit(replicas=PAGE + 1)]
    for _ in range(2):
        jobs.append(loop.submit(replicas=PAGE + 1, parent=jobs[-1].pk))
    loop.place()
    assert [set(loop.states(job)) for job in jobs] == [{"ASSIGNED"}] * 3
    return jobs


def count_killed(jobs: Sequence[Job]) -> int:
    return Task.objects.filter(job__in=jobs, state=S.KILLED).count()


def check(jobs: Sequence[Job]) -> list[InvariantViolation]:
    """Return what is wrong with these jobs, and the cells; the others were checked before."""
    return find_violations(load_jobs([job.pk for job in jobs])) + find_violations(load_cells())


def check_finished(loop: Loop, cell: FakeCell, job: Job) -> None:
    """Check that the job is KILLED, each task was killed once, and each container is stopped."""
    assert loop.state(job) == "KILLED"
    assert set(loop.states(job)) == {"KILLED"}
    kills = Transition.objects.filter(job_id=job.pk, to_state=S.KILLED, task_id__isnull=False)
    times = Counter(kills.exclude(from_state=S.KILLED).values_list("task_id", flat=True))
    assert times == {task.pk: 1 for task in loop.tasks(job)}
    attempts = loop.attempts(job)
    stopped = set(cell.stop_orders())
    # What was committed but not sent any more is repeated in the answer to a heartbeat.
    stopped |= {stop.uid for stop in cell.beat(*attempts).orders.stops}
    assert stopped >= {str(attempt.uid) for attempt in attempts}
    cell.report(*(AttemptReport(str(item.uid), 0, S.KILLED, gone=True) for item in attempts))
    assert Job.objects.get(pk=job.pk).settled_at is not None
    assert not Attempt.objects.filter(job=job, released_at=None).exists()
    assert check([job]) == []


def die_everywhere(
    loop: Loop,
    cell: FakeCell,
    start: Callable[[Loop], Sequence[Job]],
    prepare: Callable[[Job], object],
    work: Callable[[Job], object],
) -> list[int]:
    """New jobs for each statement of `work`, which dies there; how many tasks it had ended then.

    `prepare` comes before, in a process that lives. The last of all is not killed.
    """
    found = []
    for at in count():
        loop.wire.sent.clear()
        jobs = start(loop)
        prepare(jobs[0])
        death = work_until_death(partial(work, jobs[0]), at_statement(at))
        loop.wire.sent += death.sent
        found.append(count_killed(jobs))
        try:
            assert check(jobs) == []
            if Job.objects.get(pk=jobs[0].pk).ending_as is None:
                cancel(jobs[0])  # the client received no answer, and repeats the call
            loop.converge()
            for job in jobs:
                check_finished(loop, cell, job)
        except AssertionError as fault:
            raise AssertionError(f"died before statement {at}: {death.before}") from fault
        if death.before is None:
            return found
    raise AssertionError


def test_cancel_killed_at_any_statement_is_finished_by_a_tick(loop: Loop, cell: FakeCell) -> None:
    killed = die_everywhere(loop, cell, start_job, lambda job: None, cancel)
    assert sorted(set(killed)) == [0, PAGE]


def test_convergence_killed_at_any_statement_is_finished_by_the_next_tick(
    loop: Loop, cell: FakeCell
) -> None:
    killed = die_everywhere(loop, cell, start_job, cancel, converge)
    assert sorted(set(killed)) == [PAGE * page for page in range(1, PAGES + 1)]
    # Inside of a page there are many statements: lock, read, tasks, attempts, history, counts.
    assert min(Counter(killed).values()) >= 4


def test_convergence_killed_in_a_job_tree_is_finished_by_the_next_tick(
    loop: Loop, cell: FakeCell
) -> None:
    killed = die_everywhere(loop, cell, start_family, cancel, converge)
    # Of each of the three a whole page, then the rest; the first page was the caller's.
    assert sorted(set(killed)) == [PAGE + ended for ended in (0, 1, PAGE + 1, 5, 8, 9)]


def test_convergence_killed_while_requeuing_a_gang_is_finished_by_a_tick(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascades, "requeue_page", partial(cascades.requeue_page, page=PAGE))
    found = set()
    for at in count():
        loop.wire.sent.clear()
        gang = loop.submit(replicas=2 * PAGE + 1, coscheduled=True)
        loop.place()
        lost, *others = loop.attempts(gang)
        cell.end(lost, S.WORKER_FAILED, reason="vanished")
        death = work_until_death(partial(converge, gang), at_statement(at))
        loop.wire.sent += death.sent
        found.add(loop.states(gang).count("PENDING"))
        try:
            assert check([gang]) == []
            loop.converge()
            check_gone_back(loop, cell, gang, others)
        except AssertionError as fault:
            raise AssertionError(f"died before statement {at}: {death.before}") from fault
        if death.before is None:
            break
    assert sorted(found) == [1, 1 + PAGE, 1 + 2 * PAGE]


def check_gone_back(loop: Loop, cell: FakeCell, gang: Job, others: Sequence[Attempt]) -> None:
    """All wait again, each went back once, only the lost one paid; then the gang makes room."""
    assert set(loop.states(gang)) == {"PENDING"}
    assert not Job.objects.get(pk=gang.pk).is_requeuing
    steps = Transition.objects.filter(job_id=gang.pk, to_state=S.PENDING, task_id__isnull=False)
    assert Counter(steps.exclude(from_state=S.PENDING).values_list("task_id", flat=True)) == {
        task.pk: 1 for task in loop.tasks(gang)
    }
    assert sum(task.preemption_count for task in loop.tasks(gang)) == 1
    stopped = set(cell.stop_orders()) | {stop.uid for stop in cell.beat(*others).orders.stops}
    assert stopped == {str(attempt.uid) for attempt in others}
    cell.report(*(AttemptReport(str(item.uid), 0, S.KILLED, gone=True) for item in others))
    assert check([gang]) == []
    cancel(gang)
    loop.converge()
    assert Job.objects.get(pk=gang.pk).settled_at is not None


def test_cascade_finishes_when_every_tick_dies_after_one_page(loop: Loop, cell: FakeCell) -> None:
    [job] = start_job(loop)
    cancel(job)
    for pages in range(2, PAGES + 1):
        death = work_until_death(partial(converge, job), at_statement(1, JOB_LOCK))
        assert death.before is not None
        loop.wire.sent += death.sent
        assert count_killed([job]) == PAGE * pages
        assert check([job]) == []
    check_finished(loop, cell, job)
