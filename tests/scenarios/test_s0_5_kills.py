"""S0.5: KILLED by cancel, job's end, timeout or parent's end, and never tried again."""

import pytest

from controlplane import clock
from controlplane.commands.convergence.jobs import end_children
from controlplane.commands.jobs.cancel import cancel_job, cancel_task
from controlplane.contract.states import TaskState as S
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.models import Attempt, Cell, Job
from controlplane.queries.convergence.due import list_jobs_with
from tests.integration.loop.conftest import FakeCell
from tests.scenarios.stage import Stage


def cancel(stage: Stage, job: Job, *, force: bool = False, reason: str = "") -> None:
    cancel_job(job_id=job.pk, reason=reason, force=force, actor="me", now=clock.now())


@pytest.mark.parametrize("stands", ["PENDING", "ASSIGNED", "BUILDING", "RUNNING"])
def test_cancel_kills_a_task_in_any_open_state_for_good(stage: Stage, stands: str) -> None:
    cell = stage.cell()
    job = stage.submit_small(retries={"failure": 9})
    if stands != "PENDING":
        stage.place()
    if stands in ("BUILDING", "RUNNING"):
        stage.begin(stage.last(job), stands)
    assert stage.states(job) == [stands]
    cancel(stage, job, reason="enough")
    assert (stage.state(job), stage.states(job)) == ("KILLED", ["KILLED"])
    assert stage.history(job)[-1] == ("KILLED", "cancelled", "me")
    assert stage.job(job).failure_reason == "cancelled: enough"
    assert cell.stop_orders() == [str(row.uid) for row in stage.attempts(job)]
    stage.wait(600)
    stage.place()
    assert stage.states(job) == ["KILLED"]
    assert stage.counters(job) == (0, 0, 0)


def test_cancelling_a_task_kills_its_job_and_the_other_tasks(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3)
    stage.place()
    stage.succeed(stage.newest(job)[0])
    second = stage.tasks(job)[1]
    cancel_task(task_id=second.pk, reason="", force=False, actor="me", now=clock.now())
    stage.settle()
    assert (stage.state(job), stage.states(job)) == ("KILLED", ["SUCCEEDED", "KILLED", "KILLED"])
    assert [(reason, actor) for to, reason, actor in stage.history(job) if to == "KILLED"] == [
        ("cancelled", "me"),
        ("job_ended", "convergence"),
    ]


def test_failed_job_kills_its_remaining_tasks(stage: Stage) -> None:
    cell = stage.cell(cpu=300)
    job = stage.submit_small(replicas=4)
    stage.place()
    first, second, third = stage.newest(job)
    stage.start(second)
    stage.fail(first)
    assert (stage.state(job), stage.job(job).ending_as) == ("RUNNING", S.FAILED)
    stage.settle()
    assert (stage.state(job), stage.states(job)) == ("FAILED", ["FAILED", *["KILLED"] * 3])
    assert {reason for to, reason, _ in stage.history(job) if to == "KILLED"} == {"job_ended"}
    assert set(cell.stop_orders()) == {str(second.uid), str(third.uid)}
    stage.check()


def test_timeout_counts_from_program_start_with_a_grace_for_the_cell(
    stage: Stage,
) -> None:
    cell = stage.cell()
    job, attempt = stage.placed(timeout_seconds=10, retries={"failure": 5})
    stage.build(attempt)
    stage.wait(55)
    stage.converge()
    stage.start(attempt)
    stage.wait(39)
    stage.converge()
    assert stage.states(job) == ["RUNNING"]
    stage.wait(1.1)
    stage.converge()
    assert (stage.state(job), stage.states(job)) == ("KILLED", ["KILLED"])
    assert stage.task(job).failure_reason == "exceeded its time limit"
    assert cell.stop_orders() == [str(attempt.uid)]
    assert stage.last(job).released_at is None


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"lifetime_seconds": 10}, "lifetime_over"),
        ({"lifetime_seconds": 10, "timeout_seconds": 20}, "lifetime_over"),
        ({"lifetime_seconds": 20, "timeout_seconds": 10}, "timeout"),
        ({"timeout_seconds": 10}, "timeout"),
    ],
)
def test_kill_reason_is_the_limit_that_was_reached_first(
    stage: Stage, limits: dict[str, float], reason: str
) -> None:
    stage.cell()
    job, _ = stage.running(kind="interactive", **limits)
    stage.wait(41)
    stage.converge()
    assert stage.history(job)[-1] == ("KILLED", reason, "convergence")
    assert stage.last(job).stop_reason == reason


def test_timeout_enforced_by_the_cell_has_reason_timeout(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(timeout_seconds=10, retries={"failure": 5})
    stage.wait(10)
    stage.end(attempt, S.KILLED, exit_code=143, reason="timeout")
    assert (stage.states(job), stage.history(job)[-1]) == (
        ["KILLED"],
        ("KILLED", "timeout", "cell"),
    )
    assert stage.last(job).release_kind == "confirmed"


def test_exit_before_the_timeout_is_enforced_takes_precedence(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(timeout_seconds=10)
    stage.wait(39)
    stage.converge()
    stage.succeed(attempt)
    stage.wait(5)
    stage.converge()
    assert stage.state(job) == "SUCCEEDED"


def test_timeout_applies_to_each_attempt(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(timeout_seconds=60, retries={"failure": 1})
    stage.wait(80)
    stage.fail(attempt)
    stage.wait(2)
    stage.place()
    stage.start(stage.last(job))
    stage.wait(80)
    stage.converge()
    assert stage.states(job) == ["RUNNING"]
    stage.wait(11)
    stage.converge()
    assert stage.states(job) == ["KILLED"]


def family(stage: Stage, generations: int = 4) -> list[Job]:
    jobs = [stage.submit_small()]
    for _ in range(generations - 1):
        jobs.append(stage.submit_small(parent=jobs[-1].pk))
    stage.place()
    return jobs


def test_cancelled_parent_kills_all_descendants(stage: Stage) -> None:
    stage.cell()
    jobs = family(stage)
    cancel(stage, jobs[0])
    stage.converge()
    assert [stage.state(job) for job in jobs] == ["KILLED"] * 4
    assert [stage.history(job)[-1][1] for job in jobs] == ["cancelled", *["parent_ended"] * 3]
    assert f"its parent, job {jobs[1].pk}" in stage.job(jobs[2]).failure_reason


@pytest.mark.parametrize(
    ("end", "child"),
    [
        (S.FAILED, "KILLED"),
        (S.WORKER_FAILED, "KILLED"),
        (S.UNSCHEDULABLE, "KILLED"),
        (S.SUCCEEDED, "RUNNING"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_children_are_killed_unless_their_parent_succeeded(
    stage: Stage, end: S, child: str
) -> None:
    if end is S.UNSCHEDULABLE:
        parent = stage.submit_small(scheduling_timeout_seconds=10)
        orphan = stage.submit_small(parent=parent.pk)
        stage.wait(11)
        stage.place()
        stage.settle()
    else:
        stage.cell()
        parent, attempt = stage.placed(retries={"preemption": 0})
        orphan, _ = stage.placed(parent=parent.pk)
        happens = {S.FAILED: stage.fail, S.WORKER_FAILED: stage.vanish, S.SUCCEEDED: stage.succeed}
        happens[end](attempt)
        stage.settle()
    assert (stage.state(parent), stage.state(orphan)) == (end.name, child)


def test_children_end_as_soon_as_their_parent_is_ending(stage: Stage) -> None:
    stage.cell()
    parent = stage.submit_small(replicas=2)
    child = stage.submit_small(parent=parent.pk)
    stage.place()
    stage.fail(stage.newest(parent)[0])
    # Before convergence ends the parent's other task, which runs.
    assert end_children(list_jobs_with("orphaned_jobs", 10), now=clock.now()) == {child.pk}
    assert (stage.state(parent), stage.states(parent)) == ("RUNNING", ["FAILED", "ASSIGNED"])
    assert stage.job(child).ending_as == S.KILLED
    stage.converge()
    assert stage.state(child) == "KILLED"


def test_ended_parent_accepts_no_children(stage: Stage) -> None:
    parent = stage.submit_small()
    cancel(stage, parent)
    with pytest.raises(JobsRefused, match="takes no more children"):
        stage.submit_small(parent=parent.pk)


def test_replaced_job_is_killed_with_reason_replaced(stage: Stage) -> None:
    stage.cell()
    old, attempt = stage.running(name="nightly")
    new = stage.submit_small(name="nightly", existing_job_policy="replace")
    stage.settle()
    assert (stage.state(old), stage.history(old)[-1][1]) == ("KILLED", "replaced")
    stage.place()
    assert stage.states(new) == ["PENDING"]
    stage.confirm(attempt)
    stage.settle()
    stage.place()
    assert stage.states(new) == ["ASSIGNED"]


def test_group_with_a_failed_dependency_is_killed_and_its_job_fails(
    stage: Stage,
) -> None:
    stage.cell()
    groups = [stage.group("prepare"), stage.group("main", depends_on=[{"group": "prepare"}])]
    job = stage.submit(groups=groups, max_task_failures=1)
    stage.place()
    stage.fail(*stage.newest(job))
    stage.settle()
    assert stage.states(job) == ["FAILED", "KILLED"]
    assert stage.history(job)[-1] == ("KILLED", "dependency_failed", "convergence")
    assert stage.state(job) == "FAILED"


def test_a_job_whose_dependency_failed_is_killed_with_the_reason(stage: Stage) -> None:
    stage.cell()
    first, attempt = stage.placed()
    second = stage.submit_small(depends_on=[{"job": first.pk}])
    stage.fail(attempt)
    stage.settle()
    assert (stage.state(second), stage.history(second)[-1][1]) == (
        "KILLED",
        "job_dependency_failed",
    )
    assert "can no longer be" in stage.job(second).failure_reason


def test_killed_attempt_holds_capacity_until_its_end_is_confirmed(stage: Stage) -> None:
    stage.cell(cpu=100)
    job, attempt = stage.running()
    cancel(stage, job)
    next_one = stage.submit_small()
    stage.place()
    assert stage.states(next_one) == ["PENDING"]
    assert stage.job(job).settled_at is None
    stage.confirm(attempt)
    stage.place()
    assert stage.states(next_one) == ["ASSIGNED"]
    assert stage.job(job).settled_at is not None


def test_stop_order_is_repeated_until_it_is_confirmed(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running()
    cancel(stage, job)
    for _ in range(3):
        assert [stop.uid for stop in cell.beat(stage.last(job)).orders.stops] == [str(attempt.uid)]
    stage.confirm(attempt)
    assert not cell.beat().orders.stops


def forces(cell: FakeCell, *held: Attempt) -> list[bool]:
    """Return whether the stops in the answer to the next heartbeat are forced."""
    return [stop.force for stop in cell.beat(*held).orders.stops]


def test_unconfirmed_stop_is_forced_before_its_cell_is_quarantined(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running(stop_grace_seconds=5)
    cancel(stage, job)
    stage.wait(34)
    stage.converge()
    assert forces(cell, attempt) == [False]
    sent = len(cell.stop_orders())
    stage.wait(2)
    stage.converge()
    # At once, and with each Sync from now on.
    assert len(cell.stop_orders()) == sent + 1
    assert forces(cell, attempt) == [True]
    assert stage.history(job)[-1] == ("KILLED", "stop_forced", "convergence")
    assert stage.last(job).stop_reason == "cancelled"
    stage.wait(27)
    stage.converge()
    assert Cell.objects.get().state == "READY"
    stage.wait(5)
    stage.converge()
    assert Cell.objects.get().state == "QUARANTINED"
    assert [reason for _, reason, _ in stage.history(job)].count("stop_forced") == 1
    stage.confirm(attempt)
    stage.converge()
    assert Cell.objects.get().state == "READY"
    stage.check()


def test_forced_stop_gets_its_time_after_a_convergence_outage(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running()
    cancel(stage, job)
    stage.wait(3600)
    stage.converge()
    assert (forces(cell, attempt), Cell.objects.get().state) == ([True], "READY")
    stage.wait(31)
    stage.converge()
    assert Cell.objects.get().state == "QUARANTINED"


def test_stop_forced_by_a_user_is_not_forced_again(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running()
    cancel_job(job_id=job.pk, reason="", force=True, actor="me", now=clock.now())
    stage.wait(45)
    stage.converge()
    assert forces(cell, attempt) == [True]
    assert stage.history(job)[-1] == ("KILLED", "cancelled", "me")
    stage.wait(30)
    stage.converge()
    assert Cell.objects.get().state == "QUARANTINED"


def test_ending_state_of_a_job_is_not_changed_by_later_events(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3)
    stage.place()
    first, second, third = stage.newest(job)
    stage.fail(first)
    cancel_task(task_id=stage.tasks(job)[1].pk, reason="", force=False, actor="me", now=clock.now())
    stage.succeed(third)
    stage.settle()
    assert (stage.states(job), stage.state(job)) == (["FAILED", "KILLED", "SUCCEEDED"], "FAILED")
    stage.confirm(second)
    assert stage.job(job).settled_at is not None
