"""Retry of a job: a new job of the tasks that did not succeed; pure.

Tasks keep their group and index, and groups their replicas. The minima are reduced by the number of
tasks that succeeded.
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

# Fields that the new job does not inherit: it has its own guid, and replaces no job.
_NOT_INHERITED = ("guid", "existing_job_policy")


@dataclass(frozen=True, slots=True)
class GroupRemainder:
    """The rest of a group: the `indices` of its `task_count` tasks that did not succeed.

    `is_traceable`: the jobs with the results of its other replicas are not deleted.
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
        """Return how many of the remaining tasks must succeed."""
        return max(self.min_available - self.succeeded, 0)


@dataclass(frozen=True, slots=True)
class RerunDependency:
    """A dependency of the retried job; open if it is neither met nor failed.

    `exists`: the other job is not deleted. `retried_by`: the newest retry of the other job, if any.
    """

    on_job_id: int
    name: str
    until: str
    is_met: bool
    is_failed: bool
    exists: bool = True
    retried_by: int | None = None


def check_retry(
    job: JobRow,
    spec: JobSpec,
    remainders: Mapping[str, GroupRemainder],
    relatives: Iterable[JobRow],
) -> None:
    """Check that `job` may be retried now. Raise Conflict.

    `relatives`: all jobs that share tasks with it by retries: only one of them runs at a time.
    """
    if job.state not in TERMINAL:
        raise Conflict(
            f"job {job.job_id} has not ended: retry it after its end, or cancel it first"
        )
    if not any(group.indices for group in remainders.values()):
        raise Conflict(f"there is nothing to retry: all tasks of job {job.job_id} succeeded")
    for peer in (job, *relatives):
        if peer.state not in TERMINAL:
            raise Conflict(f"job {peer.job_id} retries the same tasks and has not ended yet")
        if peer.settled_at is None:
            text = (
                f"containers of job {peer.job_id} are still being stopped: retry once it is settled"
            )
            raise Conflict(text)
    for group in spec.groups:
        sources = {item.from_.group for item in group.inputs if item.from_ is not None}
        for name in sorted(sources) if remainders[group.name].indices else ():
            if not remainders[name].is_traceable:
                text = (
                    f"group {group.name} reads the results of group {name}, which were deleted"
                    " with their job: submit the job again"
                )
                raise Conflict(text)


def plan_rerun(
    job: PlannedJob,
    spec: JobSpec,
    remainders: Mapping[str, GroupRemainder],
    *,
    min_available: int,
    now: datetime,
) -> PlannedJob:
    """Return the plan of the new job with `spec`.

    `job`: the retried job, planned again. `min_available`: of the retried job. A group without
    remaining tasks stays, because other groups may refer to it.
    """
    changes = [group.prepared for group in job.groups]
    remaining = [remainders[group.name] for group in spec.groups]
    # The launch data are those of the retried job, with the present limits of the pool.
    groups = [
        replace(group, indices=rest.indices, min_available=rest.minimum, launch=judged.launch)
        for group, judged, rest in zip(
            plan_groups(spec, now=now, changes=changes), job.groups, remaining, strict=True
        )
    ]
    succeeded = sum(group.succeeded for group in remainders.values())
    minimum = max(min_available - succeeded, sum(group.min_available for group in groups))
    tolerated = spec.max_task_failures
    if tolerated is None:
        # Without an explicit minimum all remaining tasks must succeed, and this is 0.
        tolerated = sum(len(group.indices) for group in groups) - minimum
    return replace(
        job, spec=spec, groups=groups, min_available=minimum, max_task_failures=tolerated
    )


def carry_over(job_id: int, dependencies: Iterable[RerunDependency]) -> list[JobDependency]:
    """Return the dependencies of the retry of job `job_id`. Raise Conflict.

    Met dependencies are dropped and open ones kept. A failed one is replaced by one on the newest
    retry of that job; without such a retry it is kept, and fails the new job as well.
    """
    kept = []
    for item in dependencies:
        if item.is_met:
            continue
        if item.until == "settled":
            # The replacement ended while it waited for the containers of the replaced job.
            text = f"containers of job {item.on_job_id}, which job {job_id} replaced, are still"
            raise Conflict(f"{text} being stopped: retry once it is settled")
        on_job_id = item.retried_by if item.is_failed and item.retried_by else item.on_job_id
        if on_job_id == item.on_job_id and not item.exists:
            raise Conflict(f"job {job_id} depends on job {item.name}, which was deleted")
        dependency = JobDependency.model_validate({"job": on_job_id, "until": item.until})
        if dependency not in kept:
            kept.append(dependency)
    return kept


def retried_spec(
    spec: JobSpec, *, depends_on: Sequence[JobDependency], parent: int | None
) -> JobSpec:
    """Return the spec of the new job, with these links and without `existing_job_policy`."""
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
