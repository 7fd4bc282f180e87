"""S1.6: failures of the system count apart, and only those in a row; a run of a minute ends it."""

from itertools import pairwise

import pytest

from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from controlplane.models import Job
from tests.scenarios.stage import Stage


def again(stage: Stage) -> None:
    stage.wait(300)
    stage.place()


def row_and_total(stage: Stage, job: Job) -> tuple[int, int]:
    task = stage.task(job)
    return task.system_row, task.system_failure_count


def test_the_fourth_system_failure_in_a_row_is_final_by_default(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed()
    for count in (1, 2, 3):
        stage.fail_system(stage.last(job))
        assert (stage.states(job), row_and_total(stage, job)) == (["PENDING"], (count, count))
        again(stage)
    stage.fail_system(stage.last(job))
    assert (stage.states(job), stage.state(job)) == (["FAILED"], "FAILED")
    assert stage.last(job).failure_kind == "system"
    assert [row.charged for row in stage.attempts(job)] == ["system"] * 4
    assert stage.counters(job) == (0, 0, 4)


def test_user_failures_are_counted_separately(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"failure": 1, "system": 1})
    stage.fail_system(stage.last(job))
    again(stage)
    stage.fail(stage.last(job))
    assert (stage.states(job), stage.counters(job)) == (["PENDING"], (1, 0, 1))
    again(stage)
    stage.fail_system(stage.last(job))
    assert stage.states(job) == ["PENDING"], "the failure of its own broke the row"
    again(stage)
    stage.fail(stage.last(job))
    assert (stage.states(job), stage.counters(job)) == (["FAILED"], (2, 0, 2))


@pytest.mark.parametrize(("seconds", "row"), [(59, 2), (61, 1)])
def test_attempt_that_ran_for_a_minute_resets_the_consecutive_count(
    stage: Stage, seconds: int, row: int
) -> None:
    stage.cell()
    job, attempt = stage.running()
    stage.fail_system(attempt)
    again(stage)
    stage.start(stage.last(job))
    stage.wait(seconds)
    stage.fail_system(stage.last(job))
    assert row_and_total(stage, job) == (row, 2)


def test_total_of_system_failures_is_never_reset(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running(retries={"system": 1})
    totals = []
    for _ in range(4):
        stage.wait(61)
        stage.fail_system(stage.last(job))
        totals.append(stage.task(job).system_failure_count)
        again(stage)
        stage.start(stage.last(job))
    assert totals == [1, 2, 3, 4]
    assert stage.states(job) == ["RUNNING"]


def test_losses_do_not_reset_the_consecutive_count(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"system": 1})
    stage.fail_system(stage.last(job))
    again(stage)
    stage.vanish(stage.last(job))
    again(stage)
    stage.fail_system(stage.last(job))
    assert (stage.states(job), row_and_total(stage, job)) == (["FAILED"], (2, 2))


def test_the_next_attempt_avoids_the_cell(stage: Stage) -> None:
    first = stage.cell()
    job, attempt = stage.placed()
    second = stage.cell("cell-2", cpu=2000)
    stage.fail_system(attempt)
    again(stage)
    assert stage.fake_cell_of(attempt) is first
    assert stage.fake_cell_of(stage.last(job)) is second


def where(stage: Stage, job: Job) -> str:
    """The cell of the newest attempt of the job's one task."""
    return stage.fake_cell_of(stage.last(job)).name


@pytest.mark.parametrize("between", ["nothing", "a loss", "a refusal"])
def test_a_task_avoids_every_cell_that_failed_it_while_others_are_left(
    stage: Stage, between: str
) -> None:
    stage.cell("good", cpu=200)  # so small that the default selector takes any other before it
    stage.cell("bad-1")
    stage.cell("bad-2")
    job, _ = stage.placed()
    tried = [where(stage, job)]
    while tried[-1] != "good" and len(tried) < 6:
        if between == "a refusal" and len(tried) == 2:
            stage.refuse(stage.last(job))
        else:
            stage.fail_system(stage.last(job))
        again(stage)
        if between == "a loss" and len(tried) == 1:
            stage.vanish(stage.last(job))
            again(stage)
        tried.append(where(stage, job))
    assert sorted(tried[:2]) == ["bad-1", "bad-2"]
    assert tried[2:] == ["good"], tried
    stage.check()


def test_all_cells_but_the_last_are_allowed_again_after_all_failed(stage: Stage) -> None:
    for name in ("cell-1", "cell-2", "cell-3"):
        stage.cell(name)
    job, _ = stage.placed(retries={"system": 9})
    tried = [where(stage, job)]
    for _ in range(5):
        stage.fail_system(stage.last(job))
        again(stage)
        tried.append(where(stage, job))
    assert len(set(tried[:3])) == 3
    assert all(one != other for one, other in pairwise(tried)), tried
    assert stage.states(job) == ["ASSIGNED"]


def test_starving_task_returns_to_a_failed_cell_if_others_stay_full(
    stage: Stage,
) -> None:
    stage.cell("bad", cpu=100)
    job, _ = stage.placed()
    other = stage.cell("good", cpu=100)
    _, filler = stage.placed()
    assert stage.fake_cell_of(filler) is other
    stage.fail_system(stage.last(job))
    stage.wait(60)
    stage.place()
    assert stage.states(job) == ["PENDING"]
    stage.wait(300)
    stage.place()
    assert (stage.states(job), where(stage, job)) == (["ASSIGNED"], "bad")
    stage.check()


def test_only_cell_is_used_again_after_a_failure(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed()
    for _ in range(2):
        stage.fail_system(stage.last(job))
        again(stage)
    assert [stage.fake_cell_of(row).name for row in stage.attempts(job)] == ["cell-1"] * 3


@pytest.mark.parametrize("by", ["a minute of running", "a failure of its own"])
def test_reset_of_the_consecutive_count_clears_avoided_cells(stage: Stage, by: str) -> None:
    stage.cell("cell-1")
    job, attempt = stage.placed(retries={"failure": 1})
    stage.cell("cell-2", cpu=500)
    stage.fail_system(attempt)
    again(stage)
    assert (where(stage, job), stage.task(job).avoid_cell_ids) == ("cell-2", [attempt.cell_id])
    stage.start(stage.last(job))
    if by == "a minute of running":
        stage.wait(61)
        stage.vanish(stage.last(job))
    else:
        stage.fail(stage.last(job))
    assert stage.task(job).avoid_cell_ids is None


def test_tasks_of_a_group_avoid_their_own_failed_cells(stage: Stage) -> None:
    """Tasks that avoid the same cells are placed together, others apart, each where it may."""
    for name in ("cell-1", "cell-2"):
        stage.cell(name)
    job = stage.submit_small(replicas=6)
    stage.place()
    failed_on = {row.task_id: row.cell_id for row in stage.attempts(job)}
    assert len(set(failed_on.values())) == 2
    for attempt in stage.attempts(job):
        stage.fail_system(attempt)
    again(stage)
    second = {row.task_id: row.cell_id for row in stage.attempts(job) if row.number == 2}
    assert second.keys() == failed_on.keys()
    assert all(second[task] != failed_on[task] for task in second)


def test_reported_failure_is_released_and_a_detected_one_is_stopped(
    stage: Stage,
) -> None:
    cell = stage.cell()
    reported, attempt = stage.placed()
    stage.fail_system(attempt)
    assert stage.last(reported).release_kind == "confirmed"
    found, attempt = stage.placed()
    stage.build(attempt, phase=Phase.CREATING)
    stage.wait(3600)
    stage.converge()
    stuck = stage.last(found)
    assert (stuck.state, stuck.reason, stuck.failure_kind) == (S.FAILED, "build_timeout", "system")
    assert stuck.released_at is None
    assert cell.stop_orders() == [str(attempt.uid)]
    assert (stage.states(found), row_and_total(stage, found)) == (["PENDING"], (1, 1))


def test_each_build_phase_has_its_own_timeout(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed()
    pool = job.pool
    stage.build(attempt, phase=Phase.PULLING)
    stage.wait(pool.pull_timeout_seconds - 1)
    stage.converge()
    assert stage.states(job) == ["BUILDING"]
    stage.build(attempt, phase=Phase.CREATING)
    stage.wait(pool.create_timeout_seconds - 1)
    stage.converge()
    assert stage.states(job) == ["BUILDING"]
    stage.wait(2)
    stage.converge()
    assert (stage.states(job), cell.stop_orders()) == (["PENDING"], [str(attempt.uid)])


def test_user_failure_is_retried_after_the_attempt_is_confirmed_gone(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running(retries={"failure": 1})
    cell.report(AttemptReport(str(attempt.uid), 0, S.FAILED, exit_code=1))
    assert (stage.states(job), stage.last(job).released_at) == (["PENDING"], None)
    again(stage)
    assert len(stage.attempts(job)) == 1
    stage.fail(attempt)
    again(stage)
    assert [row.number for row in stage.attempts(job)] == [1, 2]


def test_job_sets_its_system_retry_limit(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed(retries={"system": 0})
    stage.fail_system(attempt)
    assert stage.states(job) == ["FAILED"]
