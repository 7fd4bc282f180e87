"""A process that ends a job dies, at any statement of any page: the next tick finishes its work.

The cascade is the same for every way to end: what is cancelled here could have failed as well.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from controlplane import clock
from controlplane.commands import endings
from controlplane.commands.endings import cancel_job
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Task, Transition
from controlplane.queries.invariants import check_all
from controlplane.ticks import convergence
from tests.integration.loop.conftest import Hand, Loop
from tests.integration.loop.deaths import at_statement, work_until_death

PAGE, PAGES = 3, 5
TASKS = PAGE * PAGES
# One is never placed: it has no attempt, and nothing to stop.
PLACED = TASKS - 1
# What every page begins with.
JOB_LOCK = "FROM controlplane_job WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "PAGE", PAGE)


@pytest.fixture
def cell(loop: Loop) -> Hand:
    return loop.cell(cpu=PLACED * 1000)


def cancel(job: Job) -> None:
    cancel_job(job_id=job.pk, reason="enough", force=False, actor="me", now=clock.now())


def start_job(loop: Loop) -> Job:
    job = loop.submit(replicas=TASKS)
    loop.place()
    assert Counter(loop.states(job)) == {"ASSIGNED": PLACED, "PENDING": 1}
    return job


def count_killed(job: Job) -> int:
    return Task.objects.filter(job=job, state=S.KILLED).count()


def check_finished(loop: Loop, cell: Hand, job: Job) -> None:
    """The job is KILLED, each of its tasks was killed once, and each container is told to stop."""
    assert loop.state(job) == "KILLED"
    assert set(loop.states(job)) == {"KILLED"}
    kills = Transition.objects.filter(job_id=job.pk, to_state=S.KILLED, task_id__isnull=False)
    times = Counter(kills.exclude(from_state=S.KILLED).values_list("task_id", flat=True))
    assert times == {task.pk: 1 for task in loop.tasks(job)}
    assert check_all() == []
    attempts = loop.attempts(job)
    stopped = set(cell.stop_orders())
    # What was committed but not sent any more is said again in the answer to a heartbeat.
    stopped |= {stop.uid for stop in cell.beat(*attempts).orders.stops}
    assert stopped >= {str(attempt.uid) for attempt in attempts}
    for attempt in attempts:
        cell.end(attempt, S.KILLED)
    assert Job.objects.get(pk=job.pk).settled_at is not None
    assert not Attempt.objects.filter(job=job, released_at=None).exists()
    assert check_all() == []


def die_everywhere(
    loop: Loop, cell: Hand, prepare: Callable[[Job], object], work: Callable[[Job], object]
) -> list[int]:
    """One job for each statement of `work`, which dies there; how many tasks it had ended then.

    `prepare` comes before, in a process that lives. The last of all is not killed.
    """
    found = []
    for at in count():
        job = start_job(loop)
        prepare(job)
        death = work_until_death(partial(work, job), at_statement(at))
        loop.wire.sent += death.sent
        found.append(count_killed(job))
        try:
            assert check_all() == []
            if Job.objects.get(pk=job.pk).ending_as is None:
                cancel(job)  # nobody heard an answer, and asks again
            loop.converge()
            check_finished(loop, cell, job)
        except AssertionError as fault:
            raise AssertionError(f"died before statement {at}: {death.before}") from fault
        if death.before is None:
            return found
    raise AssertionError


def test_whoever_cancels_dies_at_any_statement_and_a_tick_finishes(loop: Loop, cell: Hand) -> None:
    killed = die_everywhere(loop, cell, lambda job: None, cancel)
    assert sorted(set(killed)) == [0, PAGE]


def test_convergence_dies_at_any_statement_of_any_page_and_the_next_tick_finishes(
    loop: Loop, cell: Hand
) -> None:
    killed = die_everywhere(loop, cell, cancel, lambda job: convergence.run(woken=True))
    assert sorted(set(killed)) == [PAGE * page for page in range(1, PAGES + 1)]
    # Inside of a page there are many statements: lock, read, tasks, attempts, history, counts.
    assert min(Counter(killed).values()) >= 4


def test_every_tick_dies_after_its_first_page_and_still_all_ends(loop: Loop, cell: Hand) -> None:
    job = start_job(loop)
    cancel(job)
    for pages in range(2, PAGES + 1):
        death = work_until_death(lambda: convergence.run(woken=True), at_statement(1, JOB_LOCK))
        assert death.before is not None
        loop.wire.sent += death.sent
        assert count_killed(job) == PAGE * pages
        assert check_all() == []
    check_finished(loop, cell, job)
