"""Dependencies: groups and jobs start once others have started, succeeded or finished."""

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
    """The progress of a job that dependent jobs wait for."""

    state: S
    started_at: datetime | None
    settled_at: datetime | None


def job_standing(job: JobMilestones, until: str) -> DependencyStatus:
    """Return the status of the dependency "`job` until `until`".

    started: a task of it ran, or it succeeded without; succeeded; finished: ended in any state;
    settled: it ended, and all its containers are gone.
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


def standing(group: GroupFacts, until: str) -> DependencyStatus:
    """Return the status of the dependency "`group` until `until`".

    started: the group's minimum of tasks, and at least one, were RUNNING at some time; succeeded:
    none is open and at least the minimum succeeded; finished: none is open.
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
    """Return the status of all dependencies: impossible if one is, satisfied if all are."""
    standings = [standing(groups[name], until) for name, until in group.depends_on]
    if DependencyStatus.IMPOSSIBLE in standings:
        return DependencyStatus.IMPOSSIBLE
    return (
        DependencyStatus.SATISFIED
        if all(s is DependencyStatus.SATISFIED for s in standings)
        else DependencyStatus.OPEN
    )
