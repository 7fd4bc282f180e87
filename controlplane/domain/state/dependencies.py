"""When groups and jobs may start: once what each depends on has started, succeeded or finished."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.states import OPEN, TERMINAL


class DependencyStatus(Enum):
    """How a dependency stands."""

    SATISFIED = "satisfied"
    OPEN = "open"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class JobMilestones:
    """How far a job has come, as jobs that depend on it see it."""

    state: S
    started_at: datetime | None
    settled_at: datetime | None


def job_standing(job: JobMilestones, until: str) -> DependencyStatus:
    """Return how "`job` until `until`" stands.

    started: a task of it ran, or it succeeded without; succeeded; finished: however it ended;
    settled: it ended, and no container of it is left.
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
    """Return how "`group` until `until`" stands.

    started: as many tasks as the group's minimum, and at least one, were RUNNING at some time,
    whatever became of them; succeeded: none is open and as many as the minimum succeeded; finished:
    none is open.
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
    """Return how all dependencies of `group` stand: impossible if one is, satisfied if all are."""
    standings = [standing(groups[name], until) for name, until in group.depends_on]
    if DependencyStatus.IMPOSSIBLE in standings:
        return DependencyStatus.IMPOSSIBLE
    return (
        DependencyStatus.SATISFIED
        if all(s is DependencyStatus.SATISFIED for s in standings)
        else DependencyStatus.OPEN
    )
