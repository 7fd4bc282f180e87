"""Retry of a job: a new job of the tasks that did not succeed; pure.

Tasks keep their group, index and replicas; the minima are reduced by the tasks that succeeded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.submission import PlannedJob, plan_groups
from controlplane.domain.state.job_rollup import JobRow
from controlplane.domain.state.states import TERMINAL
from controlplane.spec import JobSpec
from controlplane.spec.parts import JobDependency

# Fields that the new job does not inherit: it replaces no job, and its guid is its own.
_NOT_INHERITED = ("guid", "existing_job_policy")


@dataclass(frozen=True, slots=True)
class GroupRemainder:
    """The rest of a group: the `indices` of its `task_count` tasks that did not succeed.

    `is_traceable`: the jobs of its other replicas, with their results, are not deleted.
    """

    task_count: int
    min_available: int
    indices: Sequence[int]
    is_traceable: bool = True

    @property
    def succeeded(self) -> int:
        """Return the number of tasks that are not retried."""
        return self.task_count - len(self.indices)

    @property
    def minimum(self) -> int:
        """Return how many of the rest must succeed."""
        return max(self.min_available - self.succeeded, 0)


@dataclass(frozen=True, slots=True)
class RerunDependency:
    """A job that the retried one waited for. `retried_by`: the newest retry of that job, if any.

    `is_there`: the job is not deleted. Neither met nor failed: the dependency was still open.
    """

    on_job_id: int
    name: str
    until: str
    is_met: bool
    is_failed: bool
    is_there: bool = True
    retried_by: int | None = None


def check_retry(
    job: JobRow,
    spec: JobSpec,
    left: Mapping[str, GroupRemainder],
    relatives: Iterable[JobRow],
) -> None:
    """Check that `job` may be retried now. Raise Conflict.

    `relatives`: other retries of it, or of the same job. Two of them never run the same tasks.
    """
    if job.state not in TERMINAL:
        raise Conflict(
            f"job {job.job_id} has not ended: retry it after its end, or cancel it first"
        )
    if not any(group.indices for group in left.values()):
        raise Conflict(f"there is nothing to retry: all tasks of job {job.job_id} succeeded")
    for one in (job, *relatives):
        if one.state not in TERMINAL:
            raise Conflict(f"job {one.job_id} retries the same tasks and has not ended yet")
        if one.settled_at is None:
            text = (
                f"containers of job {one.job_id} are still being stopped: retry once it is settled"
            )
            raise Conflict(text)
    for group in spec.groups:
        read = {item.from_.group for item in group.inputs if item.from_ is not None}
        for name in sorted(read) if left[group.name].indices else ():
            if not left[name].is_traceable:
                text = (
                    f"group {group.name} reads the results of group {name}, which were deleted"
                    " with their job: submit the job again"
                )
                raise Conflict(text)


def plan_rerun(
    job: PlannedJob,
    spec: JobSpec,
    left: Mapping[str, GroupRemainder],
    *,
    min_available: int,
    now: datetime,
) -> PlannedJob:
    """Return the new job with `spec`, made of `job`, the retried one as it is scheduled now.

    `min_available`: of the retried job. A group without remaining tasks stays, because other groups
    may name it.
    """
    changes = [group.prepared for group in job.groups]
    groups = [
        replace(group, indices=rest.indices, min_available=rest.minimum)
        for group in plan_groups(spec, now=now, changes=changes)
        for rest in (left[group.name],)
    ]
    succeeded = sum(group.succeeded for group in left.values())
    minimum = max(min_available - succeeded, sum(group.min_available for group in groups))
    tolerated = spec.max_task_failures
    if tolerated is None:
        # Without an explicit minimum all remaining tasks must succeed, and this is 0.
        tolerated = sum(len(group.indices) for group in groups) - minimum
    return replace(
        job, spec=spec, groups=groups, min_available=minimum, max_task_failures=tolerated
    )


def carry_over(job_id: int, awaited: Iterable[RerunDependency]) -> list[JobDependency]:
    """Return the dependencies of the retry of job `job_id`. Raise Conflict.

    Met dependencies are dropped; open ones stay; a failed one is replaced by the newest retry of
    that job. Without such a retry, the new job ends as the old one did, with the same reason.
    """
    carried = []
    for item in awaited:
        if item.is_met:
            continue
        if item.until == "settled":
            # The replacement ended while it waited for the containers of the replaced job.
            text = f"containers of job {item.on_job_id}, which job {job_id} replaced, are still"
            raise Conflict(f"{text} being stopped: retry once it is settled")
        on_job_id = item.retried_by if item.is_failed and item.retried_by else item.on_job_id
        if on_job_id == item.on_job_id and not item.is_there:
            raise Conflict(f"job {job_id} depends on job {item.name}, which was deleted")
        dependency = JobDependency.model_validate({"job": on_job_id, "until": item.until})
        if dependency not in carried:
            carried.append(dependency)
    return carried


def retried_spec(
    spec: JobSpec, *, depends_on: Sequence[JobDependency], parent: int | None
) -> JobSpec:
    """Return the spec of the new job: `spec` with other links, and without a name policy."""
    changes = {"depends_on": list(depends_on), "parent": parent, "existing_job_policy": None}
    return spec.model_copy(update=changes)


def retried_document(document: Mapping[str, Any], spec: JobSpec) -> dict[str, Any]:
    """Return the document of the new job with `spec`, based on the old `document`."""
    inherited = {name: value for name, value in document.items() if name not in _NOT_INHERITED}
    depends_on = [{"job": item.job, "until": item.until} for item in spec.depends_on]
    for name, value in (("depends_on", depends_on), ("parent", spec.parent)):
        if value:
            inherited[name] = value
        else:
            inherited.pop(name, None)
    return inherited
