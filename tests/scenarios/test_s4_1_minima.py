"""S4.1: minima per group and job, checked at submission; by default all replicas."""

from typing import Any

import pytest

from controlplane.domain.roles import Role
from controlplane.models import Job
from controlplane.spec import InvalidSpec
from tests.integration.api.conftest import make_caller
from tests.scenarios.stage import SMALL, Stage


def minima(job: Job) -> tuple[int, dict[str, int]]:
    return job.min_available, dict(job.groups.values_list("name", "min_available"))


def three(stage: Stage, *values: int | None, **more: Any) -> Job:
    groups = [
        stage.group(name, replicas=3, **({} if minimum is None else {"min_available": minimum}))
        for name, minimum in zip("abc", values, strict=True)
    ]
    return stage.submit(groups=groups, **more)


def test_by_default_every_replica_is_needed(stage: Stage) -> None:
    job = three(stage, None, None, None)
    assert minima(job) == (9, {"a": 3, "b": 3, "c": 3})
    assert not job.explicit_minimum
    assert job.max_task_failures == 0


def test_the_jobs_minimum_is_by_default_the_sum_of_its_groups(stage: Stage) -> None:
    job = three(stage, 1, 2, None)
    assert minima(job) == (6, {"a": 1, "b": 2, "c": 3})
    assert job.max_task_failures == 3


@pytest.mark.parametrize("minimum", [6, 7, 9])
def test_the_jobs_minimum_may_be_more_than_the_sum(stage: Stage, minimum: int) -> None:
    job = three(stage, 1, 2, 3, min_available=minimum)
    assert minima(job) == (minimum, {"a": 1, "b": 2, "c": 3})
    assert job.max_task_failures == 9 - minimum


def test_job_minimum_without_group_minima_is_accepted_in_both_forms(stage: Stage) -> None:
    """One group: the same minima in both forms. Several: what the others cannot supply."""
    short = stage.submit_small(replicas=4, min_available=3)
    listed = stage.submit(groups=[stage.group("main", replicas=4)], min_available=3)
    assert minima(short) == minima(listed) == (3, {"main": 3})
    assert short.max_task_failures == listed.max_task_failures == 1
    assert (short.explicit_minimum, listed.explicit_minimum) == (True, True)
    groups = [stage.group("a", replicas=5), stage.group("b", replicas=2)]
    assert minima(stage.submit(groups=groups, min_available=4)) == (4, {"a": 2, "b": 0})
    assert minima(stage.submit(groups=groups, min_available=0)) == (0, {"a": 0, "b": 0})


def test_job_minimum_above_all_replicas_is_refused(stage: Stage) -> None:
    groups = [stage.group("a", replicas=5), stage.group("b", replicas=2)]
    assert stage.submit(groups=groups, min_available=7).max_task_failures == 0
    with pytest.raises(InvalidSpec, match="must be at most 7, all replicas"):
        stage.submit(groups=groups, min_available=8)


@pytest.mark.parametrize("minimum", [5, 10])
def test_a_minimum_below_the_sum_or_above_all_replicas_is_refused(
    stage: Stage, minimum: int
) -> None:
    with pytest.raises(InvalidSpec, match="at least 6, the sum of the groups', and at most 9"):
        three(stage, 1, 2, 3, min_available=minimum)
    assert not Job.objects.exists()


def test_a_groups_minimum_above_its_replicas_is_refused(stage: Stage) -> None:
    with pytest.raises(InvalidSpec, match="must be at most replicas, which is 3"):
        three(stage, 4, 0, 0)
    with pytest.raises(InvalidSpec):
        three(stage, -1, 0, 0)


def test_invalid_minimum_is_answered_422_with_the_field(stage: Stage) -> None:
    caller = make_caller("ann", Role.SUBMITTER)
    groups = [{"name": "a", "replicas": 3, **SMALL}, {"name": "b", "min_available": 1, **SMALL}]
    answer = caller.post("/jobs", {"name": "x", "groups": groups, "min_available": 5})
    assert (answer.status, list(answer.faults)) == (422, ["min_available"])
    groups[0] = {"name": "a", "replicas": 3, "min_available": 4, **SMALL}
    answer = caller.post("/jobs", {"name": "x", "groups": groups})
    assert (answer.status, list(answer.faults)) == (422, ["groups[0].min_available"])


def test_explicit_tolerance_takes_precedence_over_the_minimum(
    stage: Stage,
) -> None:
    assert three(stage, 1, 1, 1, max_task_failures=0).max_task_failures == 0
    assert three(stage, 1, 1, 1).max_task_failures == 6


def test_minimum_does_not_delay_starts_without_coscheduling(stage: Stage) -> None:
    stage.cell(cpu=100)
    job = stage.submit_small(replicas=3, min_available=2)
    stage.place()
    assert sorted(stage.states(job)) == ["ASSIGNED", "PENDING", "PENDING"]


def test_gang_starts_only_when_every_group_minimum_fits(stage: Stage) -> None:
    stage.cell(cpu=500)
    job = three(stage, 2, 2, 2, coscheduled=True)
    stage.place()
    assert stage.states(job) == ["PENDING"] * 9
    stage.cell("cell-2", cpu=100)
    stage.place()
    placed = [stage.states(job)[n : n + 3].count("ASSIGNED") for n in (0, 3, 6)]
    assert placed == [2, 2, 2]
