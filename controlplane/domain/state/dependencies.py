"""Dependencies: groups and jobs may start once others have started, succeeded or finished."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.states import OPEN, TERMINAL


class DependencyStatus(Enum):
    """Status of a dependency."""

    SATISFIED = "satisfied"
    OPEN = "open"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class JobMilestones:
    """The progress of a job for which other jobs wait."""

    state: S
    started_at: datetime | None
    settled_at: datetime | None


def job_dependency_status(job: JobMilestones, until: str) -> DependencyStatus:
    """Return the status of a dependency on `job` with the condition `until`.

    started: a task was RUNNING, or the job succeeded without one. finished: the job has ended in
    any state. settled: it has ended, and all its containers are gone.
    """
    match until:
        case "started":
            met = job.started_at is not None or job.state is S.SUCCEEDED
        case "finished":
            met = job.state in TERMINAL
        case "settled":
            return (
                DependencyStatus.SATISFIED if job.settled_at is not None else DependencyStatus.OPEN
            )
        case _:
            met = job.state is S.SUCCEEDED
    if met:
        return DependencyStatus.SATISFIED
    return DependencyStatus.IMPOSSIBLE if job.state in TERMINAL else DependencyStatus.OPEN


def group_dependency_status(group: GroupFacts, until: str) -> DependencyStatus:
    """Return the status of a dependency on `group` with the condition `until`.

    started: its minimum of tasks, and at least one, were RUNNING at some time. succeeded: no task
    is open, and at least the minimum succeeded. finished: no task is open.
    """
    is_open = any(group.counts.get(state, 0) for state in OPEN)
    match until:
        case "started":
            met = group.ran >= max(group.min_available, 0 if group.is_rest else 1)
        case "finished":
            met = not is_open
        case _:
            succeeded = group.counts.get(S.SUCCEEDED, 0)
            met = not is_open and succeeded >= group.min_available
    if met:
        return DependencyStatus.SATISFIED
    return DependencyStatus.OPEN if is_open else DependencyStatus.IMPOSSIBLE


def dependencies_of(group: GroupFacts, groups: Mapping[str, GroupFacts]) -> DependencyStatus:
    """Return the combined status of the group's dependencies: impossible if one of them is."""
    statuses = [group_dependency_status(groups[name], until) for name, until in group.depends_on]
    if DependencyStatus.IMPOSSIBLE in statuses:
        return DependencyStatus.IMPOSSIBLE
    return (
        DependencyStatus.SATISFIED
        if all(s is DependencyStatus.SATISFIED for s in statuses)
        else DependencyStatus.OPEN
    )
