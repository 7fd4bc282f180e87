"""Which tasks of a job are tried again, with which minima, and what the new job waits for."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.rerun import (
    GroupRemainder,
    RerunDependency,
    carry_over,
    check_retry,
    plan_rerun,
    retried_document,
    retried_spec,
)
from controlplane.domain.jobs.submission import PlannedJob, plan_groups
from controlplane.domain.state.job_rollup import JobRow
from controlplane.spec import JobSpec, parse_job

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ENDED = JobRow(7, S.FAILED, 1, False, 0, finished_at=NOW, settled_at=NOW)
OPEN = JobRow(9, S.PENDING, 1, False, 0)


def spec_of(*groups: dict[str, Any], **job: Any) -> JobSpec:
    full = [{"image": "x", **group} for group in groups] or [{"name": "main", "image": "x"}]
    return parse_job({"name": "job", "groups": full, **job})


def left(count: int, minimum: int, *indices: int, traceable: bool = True) -> GroupRemainder:
    found = GroupRemainder(count, minimum, list(indices))
    return found if traceable else replace(found, is_traceable=False)


def plan(spec: JobSpec, found: dict[str, GroupRemainder], minimum: int) -> PlannedJob:
    retried = PlannedJob(
        position=0,
        spec=spec,
        is_short=False,
        text="",
        digest="",
        project_id=1,
        pool_id=1,
        owner_id=1,
        min_available=spec.minimum(),
        max_task_failures=spec.tolerated_failures(),
        groups=plan_groups(spec, now=NOW, default_disk_mib=5),
    )
    return plan_rerun(retried, spec, found, min_available=minimum, now=NOW)


def check(
    job: JobRow = ENDED, *relatives: JobRow, spec: JobSpec | None = None, **found: GroupRemainder
) -> None:
    check_retry(job, spec or spec_of(), found or {"main": left(1, 1, 0)}, relatives)


def test_new_job_has_the_disk_limit_that_its_pool_has_now() -> None:
    [group] = plan(spec_of(), {"main": left(1, 1, 0)}, 1).groups
    assert group.launch["disk_limit_mib"] == 5


@pytest.mark.parametrize(
    ("count", "minimum", "indices", "succeeded", "rest"),
    [
        (4, 4, (1, 3), 2, 2),
        (4, 3, (0, 1, 2, 3), 0, 3),
        (4, 1, (2,), 3, 0),
        (4, 3, (2,), 3, 0),
        (4, 4, (), 4, 0),
        (0, 0, (), 0, 0),
    ],
)
def test_group_minimum_is_reduced_by_succeeded_tasks_down_to_zero(
    count: int, minimum: int, indices: tuple[int, ...], succeeded: int, rest: int
) -> None:
    group = left(count, minimum, *indices)
    assert (group.succeeded, group.minimum) == (succeeded, rest)


def test_retry_keeps_every_group_with_its_remaining_indices_and_replicas() -> None:
    spec = spec_of({"name": "a", "replicas": 3}, {"name": "b", "replicas": 2})
    made = plan(spec, {"a": left(3, 3), "b": left(2, 2, 1)}, 5)
    assert [(group.name, list(group.indices), group.replicas) for group in made.groups] == [
        ("a", [], 3),
        ("b", [1], 2),
    ]
    assert [group.min_available for group in made.groups] == [0, 1]
    assert (made.min_available, made.max_task_failures) == (1, 0)


def test_job_minimum_is_reduced_but_not_below_the_sum_of_its_groups() -> None:
    spec = spec_of(
        {"name": "a", "replicas": 10, "min_available": 5},
        {"name": "b", "replicas": 10, "min_available": 5},
        min_available=14,
    )
    some = {"a": left(10, 5, *range(4)), "b": left(10, 5, *range(10))}
    # 14 less the 6 that succeeded.
    assert plan(spec, some, 14).min_available == 8
    # 10 less 6 would be 4, and five of b must succeed.
    assert plan(spec, some, 10).min_available == 5


def test_explicit_failure_tolerance_is_kept_and_a_default_is_recomputed() -> None:
    group = {"name": "a", "replicas": 6}
    few = {"a": left(6, 4, 0, 1, 2, 3)}
    assert plan(spec_of(group, max_task_failures=3), few, 4).max_task_failures == 3
    assert plan(spec_of(group, max_task_failures=0), few, 4).max_task_failures == 0
    assert plan(spec_of({**group, "min_available": 4}), few, 4).max_task_failures == 2
    all_left = {"a": left(6, 6, *range(6))}
    assert plan(spec_of(group), all_left, 6).max_task_failures == 0
    assert plan(spec_of(group, min_available=6), all_left, 6).max_task_failures == 0


def test_ended_and_settled_job_can_be_retried() -> None:
    check()
    check(ENDED, replace(ENDED, job_id=8), replace(ENDED, job_id=6, state=S.SUCCEEDED))


@pytest.mark.parametrize(
    ("job", "relatives", "found", "why"),
    [
        (replace(OPEN, job_id=7), (), left(1, 1, 0), "job 7 has not ended: retry it after its end"),
        (replace(OPEN, state=S.RUNNING), (), left(1, 1, 0), "job 9 has not ended"),
        (ENDED, (), left(1, 1), "nothing to retry: all tasks of job 7 succeeded"),
        (replace(ENDED, settled_at=None), (), left(1, 1, 0), "containers of job 7 are still"),
        (ENDED, (OPEN,), left(1, 1, 0), "job 9 retries the same tasks and has not ended"),
        (
            ENDED,
            (replace(ENDED, job_id=8), replace(ENDED, job_id=11, settled_at=None)),
            left(1, 1, 0),
            "containers of job 11 are still being stopped",
        ),
    ],
)
def test_retry_is_refused_with_the_reason(
    job: JobRow, relatives: tuple[JobRow, ...], found: GroupRemainder, why: str
) -> None:
    with pytest.raises(Conflict, match=why):
        check(job, *relatives, main=found)


def test_retry_that_reads_deleted_results_is_refused() -> None:
    reads = [{"path": "/in/", "from": {"group": "a", "result": True}}]
    text = [{"path": "/in/x", "content": "text"}]
    spec = spec_of({"name": "a"}, {"name": "b", "inputs": reads}, {"name": "c", "inputs": text})
    gone, there = left(1, 0, traceable=False), left(1, 1, 0)
    with pytest.raises(Conflict, match="group b reads the results of group a, which were deleted"):
        check(spec=spec, a=gone, b=there, c=there)
    check(spec=spec, a=gone, b=left(1, 0), c=there)
    check(spec=spec, a=left(1, 0), b=there, c=there)


def carried(*awaited: RerunDependency) -> list[tuple[int | str, str]]:
    return [(item.job, item.until) for item in carry_over(7, awaited)]


def test_met_dependency_is_dropped_and_an_open_one_kept() -> None:
    met = RerunDependency(1, "one", "succeeded", is_met=True, is_failed=False, exists=False)
    open_ = RerunDependency(2, "two", "started", is_met=False, is_failed=False, retried_by=5)
    assert carried(met, open_) == [(2, "started")]
    settled = RerunDependency(1, "1", "settled", is_met=True, is_failed=False)
    assert carried(settled) == []


def test_failed_dependency_moves_to_the_newest_retry() -> None:
    failed = RerunDependency(1, "one", "succeeded", is_met=False, is_failed=True)
    assert carried(failed) == [(1, "succeeded")]
    assert carried(replace(failed, retried_by=5)) == [(5, "succeeded")]
    assert carried(replace(failed, retried_by=5, exists=False)) == [(5, "succeeded")]
    twice = replace(failed, on_job_id=3, retried_by=5)
    assert carried(replace(failed, retried_by=5), twice) == [(5, "succeeded")]


def test_a_dependency_on_a_deleted_job_cannot_be_carried_over() -> None:
    gone = RerunDependency(1, "one", "finished", is_met=False, is_failed=True, exists=False)
    with pytest.raises(Conflict, match="job 7 depends on job one, which was deleted"):
        carry_over(7, [gone])


def test_retry_is_refused_while_the_replaced_job_is_being_stopped() -> None:
    replaced = RerunDependency(1, "1", "settled", is_met=False, is_failed=False)
    with pytest.raises(Conflict, match="containers of job 1, which job 7 replaced, are still"):
        carry_over(7, [replaced])


def test_retried_document_differs_only_in_guid_policy_and_job_references() -> None:
    document = {
        "name": "job",
        "guid": "g",
        "image": "x",
        "existing_job_policy": "replace",
        "depends_on": [{"job": "one"}],
        "parent": "father",
    }
    spec = parse_job(document)
    alone = retried_spec(spec, depends_on=[], parent=None)
    assert (alone.existing_job_policy, alone.parent) == (None, None)
    assert (alone.depends_on, alone.name, alone.groups) == ([], "job", spec.groups)
    assert retried_document(document, alone) == {"name": "job", "image": "x"}
    open_ = RerunDependency(2, "two", "started", is_met=False, is_failed=False)
    child = retried_spec(spec, depends_on=carry_over(7, [open_]), parent=3)
    made = retried_document(document, child)
    assert made == {
        "name": "job",
        "image": "x",
        "depends_on": [{"job": 2, "until": "started"}],
        "parent": 3,
    }
    assert parse_job(made).depends_on == child.depends_on
    assert document["guid"] == "g"
