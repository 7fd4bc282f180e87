"""Derivation of a job from its tasks: its state, its end, and the groups that may start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.dependencies import DependencyStatus, JobMilestones, dependencies_of
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.gangs import (
    GangGroupFacts,
    GangVerdict,
    judge_gang,
    without_the_open,
)
from controlplane.domain.state.rollup import GroupTally, JobTally, job_state
from controlplane.domain.state.states import REASONS, TERMINAL, CallbackOn, Reason


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of the job with its counts after the change."""

    facts: GroupFacts
    killed_by_dependency: int = 0
    at_most_once: bool = False


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of the job table."""

    job_id: int
    state: S
    min_available: int
    explicit_minimum: bool
    max_task_failures: int
    ending_as: S | None = None
    ending_reason: str = ""
    failure_reason: str = ""
    start_after: datetime | None = None
    scheduling_timeout_seconds: float | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    settled_at: datetime | None = None
    coscheduled: bool = False
    is_requeuing: bool = False
    is_held: bool = False
    waits_for_jobs: bool = False
    is_watched: bool = False
    kind: str = "batch"
    callback_on: CallbackOn = CallbackOn.NOTHING


@dataclass(frozen=True, slots=True)
class StartableGroup:
    """A group with satisfied dependencies. `at`: earliest start; `deadline`: of its placement."""

    group_id: int
    at: datetime
    deadline: datetime | None


def roll_job(job: JobRow, groups: Sequence[GroupRow], *, now: datetime) -> JobRow:
    """Derive the job from its groups' counts; a terminal state and an ordered end are kept."""
    if job.state in TERMINAL:
        return job
    job = _judge_gang(job, groups)
    tally = _tally(job, groups, [group.facts.counts for group in groups])
    follows = job_state(tally)
    all_ended = tally.count(*TERMINAL) == tally.count(*S)
    if job.ending_as is None and follows in TERMINAL and not all_ended:
        job = replace(
            job, ending_as=follows, ending_reason=Reason.TASKS_DECIDED, is_requeuing=False
        )
    if not all_ended:
        # An ending job stays RUNNING until all its tasks have ended.
        stays = job.ending_as is not None and job.state is S.RUNNING
        state = S.RUNNING if stays or follows is S.RUNNING else S.PENDING
        return job if state is job.state else replace(job, state=state)
    state = job.ending_as or follows
    reason = "" if state is S.SUCCEEDED else job.failure_reason or _why(job, groups, state, tally)
    return replace(job, state=state, finished_at=now, failure_reason=reason)


def _judge_gang(job: JobRow, groups: Sequence[GroupRow]) -> JobRow:
    """Requeue a gang below its minima, or end one that can no longer meet them."""
    if not job.coscheduled or job.ending_as is not None:
        return replace(job, is_requeuing=False) if job.is_requeuing else job
    gang = gang_of(groups)
    verdict = judge_gang(gang, job.min_available)
    if verdict is GangVerdict.BROKEN:
        # The siblings count as WORKER_FAILED, although they end later.
        counts = [without_the_open(group.facts.counts) for group in groups]
        ending_as = job_state(_tally(job, groups, counts))
        reason = Reason.GANG_SIBLING_FAILED
        return replace(job, ending_as=ending_as, ending_reason=reason, is_requeuing=False)
    fell = verdict is GangVerdict.FELL_BELOW
    goes_on = job.is_requeuing and any(group.movable for group in gang)
    return replace(job, is_requeuing=fell or goes_on)


def gang_of(groups: Sequence[GroupRow]) -> list[GangGroupFacts]:
    """Return the facts about the groups of a gang."""
    return [
        GangGroupFacts(group.facts.counts, group.facts.min_available, not group.at_most_once)
        for group in groups
    ]


def _tally(job: JobRow, groups: Sequence[GroupRow], counts: Sequence[Mapping[S, int]]) -> JobTally:
    return JobTally(
        groups=tuple(
            GroupTally(
                counts=group_counts,
                min_available=group.facts.min_available,
                killed_by_dependency=group.killed_by_dependency,
            )
            for group, group_counts in zip(groups, counts, strict=True)
        ),
        min_available=job.min_available,
        max_task_failures=job.max_task_failures,
        explicit_minimum=job.explicit_minimum,
        ever_started=job.started_at is not None,
    )


def newly_startable(
    job: JobRow, groups: Sequence[GroupRow], *, now: datetime
) -> tuple[StartableGroup, ...]:
    """Return the waiting groups with satisfied dependencies.

    Return none while the job waits for other jobs, or ends.
    """
    if job.state in TERMINAL or job.ending_as is not None or job.waits_for_jobs:
        return ()
    by_name = {group.facts.name: group.facts for group in groups}
    return tuple(
        _startable(job, group.facts.group_id, now)
        for group in groups
        if group.facts.startable_at is None
        and dependencies_of(group.facts, by_name) is DependencyStatus.SATISFIED
    )


def has_follow_up(job: JobRow) -> bool:
    """Return whether convergence must process the job, or jobs that depend on it."""
    is_ending = job.ending_as is not None and job.finished_at is None
    return is_ending or job.is_requeuing or job.is_watched


def milestones_of(job: JobRow) -> JobMilestones:
    """Return the milestones of the job."""
    return JobMilestones(job.state, job.started_at, job.settled_at)


def impossible_groups(groups: Mapping[str, GroupFacts]) -> tuple[GroupFacts, ...]:
    """Return the groups with pending tasks and a dependency that can no longer be met."""
    return tuple(
        group
        for group in groups.values()
        if group.startable_at is None
        and group.counts.get(S.PENDING, 0)
        and dependencies_of(group, groups) is DependencyStatus.IMPOSSIBLE
    )


def _startable(job: JobRow, group_id: int, now: datetime) -> StartableGroup:
    at = max(now, job.start_after) if job.start_after else now
    timeout = job.scheduling_timeout_seconds
    return StartableGroup(
        group_id, at, at + timedelta(seconds=timeout) if timeout is not None else None
    )


def _why(job: JobRow, groups: Sequence[GroupRow], state: S, tally: JobTally) -> str:
    if job.ending_reason and job.ending_reason != Reason.TASKS_DECIDED:
        return REASONS[Reason(job.ending_reason)]
    failed = tally.count(S.FAILED)
    match state:
        case S.FAILED if failed > tally.max_task_failures:
            return f"{_tasks(failed)} failed, {tally.max_task_failures} tolerated"
        case S.FAILED:
            return _lack(job, groups) or (
                f"only {_tasks(tally.count(S.SUCCEEDED))} succeeded, which is too few"
            )
        case S.UNSCHEDULABLE:
            return f"{_tasks(tally.count(S.UNSCHEDULABLE))} could not be placed"
        case S.KILLED:
            return f"killed: {_tasks(tally.count(S.KILLED))}"
        case _:
            lost = tally.count(S.WORKER_FAILED, S.PREEMPTED)
            return f"no retry left after a lost cell or preemption: {_tasks(lost)}"


def _lack(job: JobRow, groups: Sequence[GroupRow]) -> str:
    """Describe the first group below its minimum; empty if minima do not decide the end."""
    for group in groups if job.explicit_minimum else ():
        facts = group.facts
        succeeded = facts.counts.get(S.SUCCEEDED, 0)
        if succeeded < facts.min_available:
            needed = facts.min_available
            return f"only {_tasks(succeeded)} of group {facts.name} succeeded, {needed} must"
    return ""


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
