"""S0.7: what a preempted task becomes, and which budget pays for it."""

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.states import Reason
from controlplane.domain.transitions import Event
from controlplane.models import Job
from tests.scenarios.stage import Stage


def preempt(stage: Stage, job: Job) -> None:
    stage.force(job, Event.PREEMPTED, Reason.PREEMPTED)


def test_who_had_not_begun_is_preempted_free_of_charge_always(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"preemption": 0})
    for _ in range(3):
        preempt(stage, job)
        assert (stage.states(job), stage.counters(job)) == (["PENDING"], (0, 0, 0))
        assert (stage.last(job).state, stage.last(job).charged) == (S.PREEMPTED, "")
        stage.confirm(stage.last(job))
        stage.place()


@pytest.mark.parametrize("stands", ["BUILDING", "RUNNING"])
@pytest.mark.parametrize("limit", [0, 2])
def test_who_had_begun_pays_from_the_preemption_budget_until_it_is_exhausted(
    stage: Stage, stands: str, limit: int
) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"preemption": limit})
    for count in range(1, limit + 2):
        stage.begin(stage.last(job), stands)
        preempt(stage, job)
        attempt = stage.last(job)
        assert (attempt.state, attempt.charged) == (S.PREEMPTED, "preemption")
        assert stage.counters(job) == (0, count, 0)
        assert stage.states(job) == ["PENDING" if count <= limit else "PREEMPTED"]
        stage.confirm(attempt)
        stage.place()
    assert len(stage.attempts(job)) == limit + 1
    stage.check()


def test_preemption_and_loss_share_one_budget(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running(retries={"preemption": 1})
    stage.vanish(stage.last(job))
    stage.place()
    stage.start(stage.last(job))
    preempt(stage, job)
    assert (stage.states(job), stage.counters(job)) == (["PREEMPTED"], (0, 2, 0))


def test_a_victim_is_stopped_and_holds_its_place_until_it_is_confirmed_gone(
    stage: Stage,
) -> None:
    cell = stage.cell(cpu=100)
    job, attempt = stage.running()
    preempt(stage, job)
    assert cell.stop_orders() == [str(attempt.uid)]
    assert stage.last(job).released_at is None
    stage.place()
    assert stage.states(job) == ["PENDING"]
    stage.confirm(attempt)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_a_victim_does_not_wait_before_it_is_tried_again(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    preempt(stage, job)
    assert stage.task(job).not_before is None
    stage.confirm(attempt)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_a_job_whose_tasks_were_preempted_too_often_is_worker_failed(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running(retries={"preemption": 0}, max_task_failures=0)
    preempt(stage, job)
    assert (stage.states(job), stage.state(job)) == (["PREEMPTED"], "WORKER_FAILED")


def test_a_gang_with_a_member_that_was_preempted_too_often_ends_whole(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=2, retries={"preemption": 0})
    stage.place()
    first, _ = stage.newest(job)
    stage.start(first)
    stage.end(first, S.FAILED, failure_kind="outside", reason="killed_outside", exit_code=137)
    stage.settle()
    assert stage.states(job) == ["WORKER_FAILED", "WORKER_FAILED"]


def test_what_was_preempted_is_told_by_its_history(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running()
    preempt(stage, job)
    assert stage.history(job)[-1][:2] == ("PENDING", "preempted")
