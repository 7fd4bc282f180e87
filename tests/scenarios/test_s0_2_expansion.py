"""S0.2: a job expands into its replicas, each placed, retried and tracked by itself."""

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.models import Job, Task
from controlplane.spec import InvalidSpec
from tests.integration.api.conftest import change_setting
from tests.scenarios.stage import Stage


def test_a_job_becomes_one_task_for_each_replica_of_each_group(stage: Stage) -> None:
    groups = [stage.group("prepare"), stage.group("main", replicas=3)]
    job = stage.submit(groups=groups)
    found = [(task.group.name, task.index, S(task.state).name) for task in stage.tasks(job)]
    assert found == [("prepare", 0, "PENDING"), *(("main", n, "PENDING") for n in range(3))]


def test_tasks_of_a_job_end_and_retry_independently(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=4, retries={"failure": 1}, max_task_failures=4)
    stage.place()
    first, second, third, _ = stage.newest(job)
    stage.succeed(first)
    stage.fail(second)
    stage.start(third)
    assert stage.states(job) == ["SUCCEEDED", "PENDING", "RUNNING", "ASSIGNED"]
    assert [task.failure_count for task in stage.tasks(job)] == [0, 1, 0, 0]
    stage.wait(2)
    stage.place()
    assert stage.states(job) == ["SUCCEEDED", "ASSIGNED", "RUNNING", "ASSIGNED"]
    assert [task.attempt_number for task in stage.tasks(job)] == [1, 2, 1, 1]
    stage.check()


def test_each_attempt_is_a_separate_numbered_row(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed(retries={"failure": 2})
    for _ in range(3):
        stage.fail(stage.last(job))
        stage.wait(5)
        stage.place()
    found = stage.attempts(job)
    assert [(row.number, S(row.state).name, row.exit_code) for row in found] == [
        (1, "FAILED", 1),
        (2, "FAILED", 1),
        (3, "FAILED", 1),
    ]
    assert found[0].uid == attempt.uid


def test_a_task_is_placed_again_only_when_its_last_container_is_confirmed_gone(
    stage: Stage,
) -> None:
    stage.cell()
    job, attempt = stage.placed()
    stage.wait(61)
    stage.converge()
    assert (stage.states(job), stage.task(job).attempt_open) == (["PENDING"], True)
    stage.wait(60)
    stage.place()
    assert len(stage.attempts(job)) == 1
    stage.check()
    stage.confirm(attempt)
    stage.place()
    assert [row.number for row in stage.attempts(job)] == [1, 2]


def test_job_over_the_task_limit_is_refused(
    stage: Stage,
) -> None:
    with pytest.raises((InvalidSpec, JobsRefused), match="10001 tasks are more than the 10000"):
        stage.submit_small(replicas=10_001)
    assert not Job.objects.exists()
    assert not Task.objects.exists()


def test_unfinished_tasks_per_user_are_limited(
    stage: Stage, settings: pytest.FixtureRequest
) -> None:
    change_setting(settings, max_unfinished_tasks_per_user=3)
    stage.cell()
    job = stage.submit_small(replicas=2)
    with pytest.raises(JobsRefused, match="would make 4 unfinished tasks of user owner"):
        stage.submit_small(replicas=2)
    stage.submit_small()
    stage.place()
    stage.succeed(*stage.newest(job))
    assert stage.submit_small(replicas=2).pk
