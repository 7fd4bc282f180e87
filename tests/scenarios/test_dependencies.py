"""Dependencies: of jobs and of groups, until started, succeeded or finished; stamped when met."""

import pytest

from controlplane import clock
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.models import Job, JobDependency
from controlplane.spec import InvalidSpec
from tests.scenarios.stage import Stage


def two_jobs(stage: Stage, until: str | None) -> tuple[Job, Job]:
    first = stage.submit_small()
    dependency = {"job": first.pk, **({"until": until} if until else {})}
    return first, stage.submit_small(depends_on=[dependency])


def two_groups(stage: Stage, until: str | None, **more: object) -> Job:
    dependency = {"group": "a", **({"until": until} if until else {})}
    groups = [stage.group("a", replicas=2), stage.group("b", depends_on=[dependency])]
    return stage.submit(groups=groups, max_task_failures=2, **more)


def follows(stage: Stage) -> None:
    stage.settle()
    stage.place()


@pytest.mark.parametrize(
    ("until", "starts_at"),
    [("started", "start"), ("succeeded", "succeed"), ("finished", "succeed"), (None, "succeed")],
)
def test_job_starts_when_its_dependency_reaches_the_required_state(
    stage: Stage, until: str | None, starts_at: str
) -> None:
    stage.cell()
    first, second = two_jobs(stage, until)
    stage.place()
    for step in (stage.build, stage.start, stage.succeed):
        assert stage.states(second) == ["PENDING"]
        step(stage.last(first))
        follows(stage)
        if step.__name__ == starts_at:
            break
    assert stage.states(second) == ["ASSIGNED"]
    stage.check()


@pytest.mark.parametrize(
    ("until", "state"),
    [("started", "RUNNING"), ("succeeded", "KILLED"), ("finished", "RUNNING")],
)
def test_effect_of_a_failed_dependency_follows_its_until_state(
    stage: Stage, until: str, state: str
) -> None:
    stage.cell()
    first, second = two_jobs(stage, until)
    stage.place()
    stage.start(stage.last(first))
    stage.fail(stage.last(first))
    follows(stage)
    assert stage.state(second) == state


def test_dependency_on_an_unschedulable_job_fails(stage: Stage) -> None:
    first = stage.submit_small(scheduling_timeout_seconds=10)
    second = stage.submit_small(depends_on=[{"job": first.pk, "until": "started"}])
    stage.wait(11)
    stage.place()
    stage.settle()
    assert (stage.state(first), stage.state(second)) == ("UNSCHEDULABLE", "KILLED")


def test_dependency_is_stamped_when_it_is_met(stage: Stage) -> None:
    stage.cell()
    first, second = two_jobs(stage, None)
    stage.place()
    assert JobDependency.objects.get().met_at is None
    stage.succeed(stage.last(first))
    assert JobDependency.objects.get().met_at is not None
    delete_job(job_id=first.pk, actor="me", now=clock.now())
    stage.settle()
    assert not Job.objects.filter(pk=first.pk).exists()
    stage.place()
    assert stage.states(second) == ["ASSIGNED"]


def test_every_dependency_must_be_met_and_one_failed_ends_the_job(stage: Stage) -> None:
    stage.cell()
    one, other = stage.submit_small(), stage.submit_small()
    waits = stage.submit_small(depends_on=[{"job": one.pk}, {"job": other.pk}])
    stage.place()
    stage.succeed(stage.last(one))
    follows(stage)
    assert stage.states(waits) == ["PENDING"]
    stage.fail(stage.last(other))
    stage.settle()
    assert stage.state(waits) == "KILLED"


def test_group_waits_for_the_other_groups_minimum_to_succeed_by_default(stage: Stage) -> None:
    stage.cell()
    job = two_groups(stage, None)
    stage.place()
    one, other = stage.newest(job)
    stage.succeed(one)
    follows(stage)
    assert stage.states(job) == ["SUCCEEDED", "ASSIGNED", "PENDING"]
    stage.succeed(other)
    follows(stage)
    assert stage.states(job)[2] == "ASSIGNED"


def test_group_until_started_waits_for_the_minimum_to_start(stage: Stage) -> None:
    stage.cell()
    job = two_groups(stage, "started")
    stage.place()
    one, other = stage.newest(job)
    stage.start(one)
    follows(stage)
    assert stage.states(job)[2] == "PENDING"
    stage.start(other)
    follows(stage)
    assert stage.states(job)[2] == "ASSIGNED"


@pytest.mark.parametrize("end", ["lost", "failed"])
def test_group_counts_as_started_after_its_tasks_have_ended(stage: Stage, end: str) -> None:
    """Also if start and end came in one report."""
    stage.cell()
    waits = stage.group("b", depends_on=[{"group": "a", "until": "started"}])
    groups = [stage.group("a"), waits, stage.group("c")]
    job = stage.submit(groups=groups, max_task_failures=1, retries={"preemption": 0})
    stage.place()
    [of_a, _] = stage.newest(job)
    if end == "lost":
        stage.vanish(of_a)
    else:
        stage.fail_after_start(of_a)
    follows(stage)
    assert stage.states(job)[1] == "ASSIGNED"


def test_group_whose_tasks_never_ran_does_not_count_as_started(stage: Stage) -> None:
    """A missing image: both tasks fail before their programs begin."""
    stage.cell()
    job = two_groups(stage, "started")
    stage.place()
    for attempt in stage.newest(job):
        stage.build(attempt)
        stage.fail(attempt)
    stage.settle()
    assert stage.states(job) == ["FAILED", "FAILED", "KILLED"]
    assert stage.state(job) == "FAILED"


def test_group_below_its_minimum_does_not_count_as_started(
    stage: Stage,
) -> None:
    stage.cell()
    job = two_groups(stage, "started")
    stage.place()
    one, other = stage.newest(job)
    stage.fail_after_start(one)
    follows(stage)
    assert stage.states(job) == ["FAILED", "ASSIGNED", "PENDING"]
    stage.fail(other)
    stage.settle()
    assert stage.states(job) == ["FAILED", "FAILED", "KILLED"]


def test_group_without_a_minimum_counts_as_started_after_one_task_ran(stage: Stage) -> None:
    stage.cell()
    groups = [
        stage.group("a", replicas=2, min_available=0),
        stage.group("b", depends_on=[{"group": "a", "until": "started"}]),
    ]
    job = stage.submit(groups=groups)
    stage.place()
    assert stage.states(job)[2] == "PENDING"
    stage.start(stage.newest(job)[0])
    follows(stage)
    assert stage.states(job)[2] == "ASSIGNED"


def test_succeeded_group_counts_as_started_in_a_retry(stage: Stage) -> None:
    stage.cell()
    groups = [
        stage.group("a", replicas=2),
        stage.group("b", depends_on=[{"group": "a", "until": "started"}]),
    ]
    job = stage.submit(groups=groups)
    stage.place()
    attempts = stage.newest(job)
    stage.succeed(*attempts)
    follows(stage)
    stage.fail(stage.newest(job)[2])
    assert stage.state(job) == "FAILED"
    retried = retry_job(job_id=job.pk, guid=None, actor="me", now=stage.now())
    follows(stage)
    assert stage.states(Job.objects.get(pk=retried.job_id)) == ["ASSIGNED"]


def test_group_until_finished_starts_after_any_end(stage: Stage) -> None:
    stage.cell()
    job = two_groups(stage, "finished")
    stage.place()
    stage.fail(*stage.newest(job))
    follows(stage)
    assert stage.states(job) == ["FAILED", "FAILED", "ASSIGNED"]


def test_group_with_an_impossible_dependency_is_killed_with_the_reason(
    stage: Stage,
) -> None:
    stage.cell()
    job = two_groups(stage, "succeeded")
    stage.place()
    one, other = stage.newest(job)
    stage.succeed(one)
    stage.fail(other)
    stage.settle()
    assert stage.states(job) == ["SUCCEEDED", "FAILED", "KILLED"]
    assert stage.tasks(job)[2].failure_reason == "a dependency of its group can no longer be met"


def test_dependency_cycle_between_groups_is_refused(stage: Stage) -> None:
    groups = [
        stage.group("a", depends_on=[{"group": "b"}]),
        stage.group("b", depends_on=[{"group": "a"}]),
    ]
    with pytest.raises(InvalidSpec, match="is a cycle: a needs b needs a"):
        stage.submit(groups=groups)
    assert not Job.objects.exists()


def test_dependency_chain_starts_group_by_group(stage: Stage) -> None:
    stage.cell()
    groups = [
        stage.group("a"),
        stage.group("b", depends_on=[{"group": "a"}]),
        stage.group("c", depends_on=[{"group": "b"}]),
    ]
    job = stage.submit(groups=groups)
    for done in range(3):
        stage.place()
        assert stage.states(job)[done:] == ["ASSIGNED", *["PENDING"] * (2 - done)]
        stage.succeed(stage.newest(job)[-1])
        stage.settle()
    assert stage.state(job) == "SUCCEEDED"
