"""S0.4: only FAILED tasks count toward `max_task_failures`; losses and preemptions never do."""

import pytest

from tests.scenarios.stage import Stage


def test_job_tolerates_max_task_failures(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=4, max_task_failures=2)
    stage.place()
    first, second, third, fourth = stage.newest(job)
    stage.fail(first, second)
    stage.settle()
    assert (stage.state(job), stage.job(job).ending_as) == ("RUNNING", None)
    stage.succeed(third, fourth)
    assert stage.state(job) == "SUCCEEDED"


def test_failure_over_the_tolerance_fails_the_job(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=4, max_task_failures=2)
    stage.place()
    first, second, third, fourth = stage.newest(job)
    stage.fail(first, second, third)
    stage.settle()
    assert (stage.state(job), stage.states(job)[3]) == ("FAILED", "KILLED")
    assert stage.job(job).failure_reason == "3 tasks failed, 2 tolerated"
    stage.confirm(fourth)
    assert stage.job(job).settled_at is not None


def test_by_default_no_failed_task_is_tolerated(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=2)
    stage.place()
    stage.fail(stage.newest(job)[0])
    stage.settle()
    assert stage.state(job) == "FAILED"


def test_lost_tasks_do_not_count_as_failures(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3, retries={"preemption": 0}, max_task_failures=0)
    stage.place()
    first, second, third = stage.newest(job)
    stage.vanish(first, second)
    stage.settle()
    assert (stage.state(job), stage.job(job).ending_as) == ("RUNNING", None)
    assert stage.states(job) == ["WORKER_FAILED", "WORKER_FAILED", "ASSIGNED"]
    stage.succeed(third)
    assert stage.state(job) == "WORKER_FAILED"


def test_job_survives_losses_within_the_preemption_budget(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed(max_task_failures=0)
    for _ in range(20):
        stage.vanish(stage.last(job))
        stage.place()
    assert stage.state(job) == "RUNNING"
    stage.succeed(stage.last(job))
    assert stage.state(job) == "SUCCEEDED"
    assert stage.task(job).preemption_count == 20


def test_retried_failure_does_not_count(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(retries={"failure": 1}, max_task_failures=0)
    stage.fail(attempt)
    stage.settle()
    assert stage.state(job) == "RUNNING"
    stage.wait(2)
    stage.place()
    stage.succeed(stage.last(job))
    assert stage.state(job) == "SUCCEEDED"


def test_task_out_of_system_retries_counts_as_failed(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=2, retries={"system": 0}, max_task_failures=0)
    stage.place()
    stage.fail_system(stage.newest(job)[0])
    stage.settle()
    assert (stage.states(job), stage.state(job)) == (["FAILED", "KILLED"], "FAILED")


@pytest.mark.parametrize(("minimum", "tolerated"), [(3, 2), (5, 0), (0, 5)])
def test_explicit_minimum_sets_the_default_tolerance(
    stage: Stage, minimum: int, tolerated: int
) -> None:
    job = stage.submit_small(replicas=5, min_available=minimum)
    assert job.max_task_failures == tolerated
    assert stage.submit_small(replicas=5, min_available=minimum, max_task_failures=1)
