"""S0.10: a job's state follows from its tasks' states by the first rule that matches."""

from itertools import combinations_with_replacement

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job, cancel_task
from controlplane.domain.state.states import Reason
from controlplane.domain.state.transitions import Event
from controlplane.models import Job, Task
from tests.scenarios.plain import PlainGroup, plain_end
from tests.scenarios.stage import Stage

OF_ITS_CELL = ("SUCCEEDED", "FAILED", "WORKER_FAILED", "PREEMPTED")
"""The ends that one task can have without its job taking the others along at once."""


def end_as(stage: Stage, job: Job, ends: tuple[str, ...]) -> None:
    """Each of the job's tasks, which are placed, ends so; the decisive ones last."""
    found = dict(zip(stage.tasks(job), ends, strict=True))
    order = sorted(found, key=lambda task: ("FAILED", "KILLED").count(found[task]))
    for task in order:
        attempt = task.attempts.get()
        if found[task] == "PREEMPTED":
            stage.start(attempt)
            stage.force_task(task, Event.PREEMPTED, Reason.PREEMPTED)
        elif found[task] == "KILLED":
            now = clock.now()
            cancel_task(task_id=task.pk, reason="", force=False, actor="me", now=now)
        else:
            happens = {
                "SUCCEEDED": stage.succeed,
                "FAILED": stage.fail,
                "WORKER_FAILED": stage.vanish,
            }
            happens[found[task]](attempt)


@pytest.mark.parametrize("tolerated", [0, 1, 3])
def test_job_state_matches_the_reference_for_all_ends_of_three_tasks(
    stage: Stage, tolerated: int
) -> None:
    stage.cell(cpu=100_000, memory=100_000)
    for ends in combinations_with_replacement(OF_ITS_CELL, 3):
        job = stage.submit_small(replicas=3, retries={"preemption": 0}, max_task_failures=tolerated)
        stage.place()
        end_as(stage, job, ends)
        states = stage.states(job)
        assert states == list(ends), "the decisive task is the last"
        expected = plain_end([PlainGroup(states)], minimum=None, tolerated=tolerated)
        assert (ends, stage.state(job)) == (ends, expected)
    stage.check()


def test_job_with_all_tasks_succeeded_is_succeeded(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3)
    stage.place()
    stage.succeed(*stage.newest(job))
    assert (stage.state(job), stage.job(job).failure_reason) == ("SUCCEEDED", "")


def test_first_decisive_task_determines_the_job_state(stage: Stage) -> None:
    stage.cell(cpu=200)
    job = stage.submit_small(replicas=3, scheduling_timeout_seconds=10)
    stage.place()
    first, _ = stage.newest(job)
    stage.wait(11)
    stage.place()
    stage.fail(first)
    stage.settle()
    assert sorted(stage.states(job)) == ["FAILED", "KILLED", "KILLED"]
    assert stage.state(job) == "FAILED"


def test_unschedulable_takes_precedence_over_killed(stage: Stage) -> None:
    stage.cell(cpu=100)
    groups = [stage.group("a", replicas=2), stage.group("b", depends_on=[{"group": "a"}])]
    job = stage.submit(groups=groups, scheduling_timeout_seconds=10)
    stage.place()
    stage.wait(11)
    stage.place()
    stage.settle()
    assert sorted(stage.states(job)) == ["KILLED", "KILLED", "UNSCHEDULABLE"]
    assert stage.state(job) == "UNSCHEDULABLE"


def test_killed_takes_precedence_over_a_met_minimum(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=2, min_available=1)
    stage.place()
    first, second = stage.newest(job)
    stage.succeed(first)
    assert stage.state(job) == "RUNNING"
    task = Task.objects.get(attempt_uid=second.uid)
    cancel_task(task_id=task.pk, reason="", force=False, actor="me", now=clock.now())
    assert stage.state(job) == "KILLED"


def test_task_killed_by_a_group_dependency_does_not_make_the_job_killed(stage: Stage) -> None:
    stage.cell()
    groups = [
        stage.group("a", replicas=2, min_available=0),
        stage.group("b", replicas=1, depends_on=[{"group": "c"}], min_available=0),
        stage.group("c", min_available=1),
        stage.group("d", min_available=1),
    ]
    job = stage.submit(groups=groups, max_task_failures=2)
    stage.place()
    one, two, three, four = stage.newest(job)
    stage.fail(three)
    stage.settle()
    assert stage.states(job)[2] == "KILLED"
    assert stage.state(job) == "RUNNING"
    stage.succeed(one, two, four)
    assert (stage.state(job), stage.states(job).count("KILLED")) == ("FAILED", 1)


def test_met_minimum_takes_precedence_over_lost_tasks(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3, min_available=2, retries={"preemption": 0})
    stage.place()
    first, *others = stage.newest(job)
    stage.vanish(first)
    stage.succeed(*others)
    assert stage.state(job) == "SUCCEEDED"


def test_job_with_a_met_minimum_runs_until_all_tasks_have_ended(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3, min_available=1)
    stage.place()
    first, *others = stage.newest(job)
    stage.succeed(first)
    assert stage.state(job) == "RUNNING"
    stage.fail(*others)
    assert stage.state(job) == "SUCCEEDED"


def test_job_without_any_success_fails_whatever_is_tolerated(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=2, max_task_failures=2)
    stage.place()
    stage.fail(*stage.newest(job))
    assert stage.state(job) == "FAILED"
    assert stage.job(job).failure_reason == "only 0 tasks succeeded, which is too few"


def test_job_is_running_from_its_first_placement_between_attempts(
    stage: Stage,
) -> None:
    stage.cell()
    job = stage.submit_small(retries={"failure": 1})
    assert stage.state(job) == "PENDING"
    stage.place()
    assert stage.state(job) == "RUNNING"
    stage.start(stage.last(job))
    stage.fail(stage.last(job))
    assert (stage.states(job), stage.state(job)) == (["PENDING"], "RUNNING")


def test_job_without_a_started_task_is_pending_after_a_refusal(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed()
    stage.refuse(attempt)
    assert (stage.states(job), stage.job(job).started_at) == (["PENDING"], None)
    assert stage.state(job) == "PENDING"
    stage.wait(10)
    stage.place()
    assert stage.state(job) == "RUNNING"


def test_ending_job_stays_running_until_no_task_is_open(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3)
    stage.place()
    first, second, third = stage.newest(job)
    stage.fail(first)
    waiting = stage.job(job)
    assert (stage.state(job), waiting.ending_as, waiting.finished_at) == ("RUNNING", 5, None)
    stage.succeed(second, third)
    assert (stage.state(job), stage.states(job)[1:]) == ("FAILED", ["SUCCEEDED"] * 2)


def test_tasks_of_an_ending_job_are_not_placed(stage: Stage) -> None:
    stage.cell(cpu=200)
    job = stage.submit_small(replicas=4)
    stage.place()
    stage.fail(stage.newest(job)[0])
    stage.place()
    assert stage.states(job).count("PENDING") == 2
    stage.settle()
    assert stage.state(job) == "FAILED"


def test_ended_job_is_not_changed_by_a_cancel(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    stage.succeed(attempt)
    before = stage.job(job)
    cancel_job(job_id=job.pk, reason="late", force=True, actor="me", now=clock.now())
    stage.settle()
    after = stage.job(job)
    assert (after.state, after.finished_at, after.failure_reason) == (
        before.state,
        before.finished_at,
        "",
    )


def test_job_is_settled_when_its_last_attempt_is_released(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=2)
    stage.place()
    first, second = stage.newest(job)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    stage.confirm(first)
    assert (stage.state(job), stage.job(job).settled_at) == ("KILLED", None)
    stage.confirm(second)
    assert stage.job(job).settled_at is not None


def test_later_task_ends_do_not_change_the_ending_state_of_a_job(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3)
    stage.place()
    first, second, third = stage.newest(job)
    task = Task.objects.get(attempt_uid=first.uid)
    cancel_task(task_id=task.pk, reason="", force=False, actor="me", now=clock.now())
    stage.fail(second)
    stage.succeed(third)
    assert stage.states(job) == ["KILLED", "FAILED", "SUCCEEDED"]
    assert stage.state(job) == "KILLED"
