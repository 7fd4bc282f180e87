"""S3.3: a concurrency key limits tasks of all jobs of a project, and no end leaves it used up."""

from collections.abc import Callable

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Reason
from controlplane.domain.state.transitions import Event
from controlplane.models import Attempt, Job
from tests.scenarios.stage import Stage

KEY = {"key": "customer-42", "limit": 1}


def holder(stage: Stage) -> tuple[Job, Attempt, Job]:
    """A running job that holds the key, its attempt, and a job that waits for the key."""
    stage.cell()
    job, attempt = stage.running(concurrency=KEY)
    other = stage.submit_small(concurrency=KEY)
    stage.place()
    assert stage.states(other) == ["PENDING"]
    return job, attempt, other


def is_cancelled(stage: Stage, job: Job, attempt: Attempt) -> None:
    cancel_job(job_id=job.pk, reason="", force=False, actor="owner", now=clock.now())
    stage.settle()
    stage.confirm(attempt)


def loses_its_cell(stage: Stage, job: Job, attempt: Attempt) -> None:
    """The retry of the older job may get the key before the other job."""
    cell = stage.fake_cell_of(attempt)
    stage.cell("cell-2")
    stage.lose(cell)
    stage.place()
    held = list(Attempt.objects.filter(released_at=None))
    assert len(held) == 1
    if held[0].job_id == job.pk:
        stage.start(*held)
        stage.succeed(*held)


def is_evicted(stage: Stage, job: Job, attempt: Attempt) -> None:
    stage.force(job, Event.PREEMPTED, Reason.PREEMPTED)
    stage.place()
    assert Attempt.objects.filter(released_at=None).count() == 1
    stage.confirm(attempt)
    cancel_job(job_id=job.pk, reason="", force=False, actor="owner", now=clock.now())


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda stage, job, attempt: stage.succeed(attempt), id="succeeds"),
        pytest.param(lambda stage, job, attempt: stage.fail(attempt), id="fails"),
        pytest.param(is_cancelled, id="is_cancelled"),
        pytest.param(loses_its_cell, id="loses_its_cell"),
        pytest.param(is_evicted, id="is_evicted"),
    ],
)
def test_key_is_free_again_after_each_kind_of_end(
    stage: Stage, end: Callable[[Stage, Job, Attempt], None]
) -> None:
    job, attempt, other = holder(stage)
    end(stage, job, attempt)
    stage.place()
    assert stage.states(other) == ["ASSIGNED"]
    stage.check()


def test_rate_of_a_key_spreads_starts_over_time(stage: Stage) -> None:
    stage.cell()
    rate = {"key": "customer-42", "starts": {"count": 2, "per_seconds": 30}}
    job = stage.submit_small(replicas=5, concurrency=rate)
    started = []
    for _ in range(4):
        stage.place()
        started.append(Attempt.objects.filter(job=job).count())
        stage.wait(20)
    # After 0, 20, 40 and 60 seconds.
    assert started == [2, 2, 4, 4]
    stage.wait(10)
    stage.place()
    assert stage.states(job) == [S.ASSIGNED.name] * 5
    stage.check()


def test_each_job_obeys_its_own_limit_and_counts_the_tasks_of_all(stage: Stage) -> None:
    stage.cell()
    careful = stage.submit_small(replicas=2, concurrency={**KEY, "limit": 1})
    eager = stage.submit_small(replicas=4, concurrency={**KEY, "limit": 3})
    stage.place()
    assert stage.states(careful) == ["ASSIGNED", "PENDING"]
    assert stage.states(eager) == ["ASSIGNED", "ASSIGNED", "PENDING", "PENDING"]
    # The careful job starts no other task while the eager one holds the key.
    stage.start(*stage.newest(careful))
    stage.succeed(*stage.newest(careful))
    stage.place()
    assert stage.states(careful) == ["SUCCEEDED", "PENDING"]
    assert stage.states(eager).count("ASSIGNED") == 3
    stage.check()


def test_gang_starts_whole_or_waits_for_its_key(stage: Stage) -> None:
    stage.cell()
    rule = {"key": "customer-42", "limit": 3}
    _, attempt = stage.running(concurrency=rule)
    gang = stage.submit_small(replicas=3, coscheduled=True, concurrency=rule)
    stage.place()
    assert stage.states(gang) == ["PENDING"] * 3
    stage.succeed(attempt)
    stage.place()
    assert stage.states(gang) == ["ASSIGNED"] * 3
    stage.check()


def test_newest_job_replaces_the_oldest_and_starts_when_their_containers_are_gone(
    stage: Stage,
) -> None:
    stage.cell()
    old, attempt = stage.running(concurrency=KEY)
    new = stage.submit_small(concurrency={**KEY, "on_conflict": "replace"})
    stage.settle()
    stage.place()
    assert (stage.states(old), stage.states(new)) == (["KILLED"], ["PENDING"])
    stage.confirm(attempt)
    stage.place()
    assert stage.states(new) == ["ASSIGNED"]
    stage.check()
