"""The job part of `apply`: counts of groups, derived states, dependencies, callbacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from controlplane import clock
from controlplane.commands.state import apply_sql
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.dependencies import DependencyStatus, job_dependency_status
from controlplane.domain.state.effects import EndJob
from controlplane.domain.state.group_counts import JobContext, Move, move_counts
from controlplane.domain.state.job_rollup import (
    GroupRow,
    JobRow,
    StartableGroup,
    has_follow_up,
    milestones_of,
    newly_startable,
    roll_job,
)
from controlplane.domain.state.states import CallbackOn, Reason
from controlplane.queries.locks import (
    find_open_dependencies,
    find_unreleased_jobs,
    load_groups,
)
from controlplane.queries.sql import execute

_STATE_SLOTS = max(S) + 1


@dataclass(slots=True)
class TickWakes:
    """The ticks to wake after the commit."""

    placement: bool = False
    callbacks: bool = False
    convergence: bool = False


def follow_tasks(
    jobs: Mapping[int, JobRow],
    touched: set[int],
    moves: Sequence[Move],
    given: JobContext,
    *,
    now: datetime,
    actor: str,
    woken: TickWakes,
) -> None:
    """Update the counts of groups by `moves`, and derive each touched job."""
    if not touched:
        return
    groups = load_groups(sorted(touched))
    move_counts(groups, moves)
    before = {job_id: jobs[job_id] for job_id in touched}
    after: dict[int, JobRow] = {}
    startable: list[StartableGroup] = []
    for job_id in sorted(touched):
        job, listed = given.add_to(before[job_id]), groups.get(job_id, ())
        after[job_id] = roll_job(job, listed, now=now)
        startable += newly_startable(after[job_id], listed, now=now)
    after = _settle(_ended_under_lock(before, after), now)
    _write_groups(groups, moves, startable)
    _write_jobs(before, after, given.endings, now, actor)
    _stamp_dependencies([job for job_id, job in after.items() if job != before[job_id]], now)
    woken.placement |= bool(startable)
    woken.convergence |= bool(startable)  # its tasks may have to be looked up in the cache
    ended = [
        job_id
        for job_id, job in after.items()
        if job.finished_at is not None and before[job_id].finished_at is None
    ]
    if ended:
        execute(apply_sql.NOTE_ENDS, [ended], prepare=True)
    settled = [
        job_id
        for job_id, job in after.items()
        if job.callback_on is CallbackOn.JOB
        and job.settled_at is not None
        and before[job_id].settled_at is None
    ]
    if settled:
        woken.callbacks |= bool(execute(apply_sql.ADD_JOB_CALLBACKS, [now, now, now, settled]))
    for job_id, job in after.items():
        woken.placement |= before[job_id].is_requeuing and not job.is_requeuing
        woken.convergence |= has_follow_up(job) and job != before[job_id]


def _stamp_dependencies(jobs: Sequence[JobRow], now: datetime) -> None:
    """Record which dependencies on `jobs` are met, or can no longer be met."""
    watched = {job.job_id: job for job in jobs if job.is_watched}
    if not watched:
        return
    stamped = []
    for dependency_id, on_job_id, until in find_open_dependencies(list(watched)):
        status = job_dependency_status(milestones_of(watched[on_job_id]), until)
        if status is not DependencyStatus.OPEN:
            stamped.append((dependency_id, status is DependencyStatus.SATISFIED))
    if stamped:
        parameters = {
            "id": [dependency_id for dependency_id, _ in stamped],
            "met_at": [now if is_met else None for _, is_met in stamped],
            "failed_at": [None if is_met else now for _, is_met in stamped],
        }
        execute(apply_sql.STAMP_DEPENDENCIES, parameters)


def _ended_under_lock(
    before: Mapping[int, JobRow], after: Mapping[int, JobRow]
) -> dict[int, JobRow]:
    """Return the jobs with end times not before placements made during the wait for their locks."""
    ended = {job_id for job_id, job in after.items() if job.finished_at} - {
        job_id for job_id, job in before.items() if job.finished_at
    }
    now = clock.now() if ended else None
    return {
        job_id: replace(job, finished_at=max(job.finished_at, now))
        if now and job.finished_at and job_id in ended
        else job
        for job_id, job in after.items()
    }


def _settle(jobs: Mapping[int, JobRow], now: datetime) -> dict[int, JobRow]:
    """Return the jobs, with finished ones settled if no attempt of theirs holds capacity."""
    finished = {
        job_id for job_id, job in jobs.items() if job.finished_at and job.settled_at is None
    }
    free = finished - find_unreleased_jobs(sorted(finished)) if finished else finished
    return {
        job_id: replace(job, settled_at=now) if job_id in free else job
        for job_id, job in jobs.items()
    }


def _write_groups(
    groups: Mapping[int, list[GroupRow]], moves: Sequence[Move], startable: Sequence[StartableGroup]
) -> None:
    starts = {item.group_id: item for item in startable}
    moved = {group_id for _, group_id, *_ in moves} | set(starts)
    written = [row for listed in groups.values() for row in listed if row.facts.group_id in moved]
    if not written:
        return
    found = [starts.get(row.facts.group_id) for row in written]
    parameters = {
        "group_id": [row.facts.group_id for row in written],
        "counts": [counts_literal(row.facts.counts) for row in written],
        "excused": [row.killed_by_dependency for row in written],
        "startable_at": [
            start.at if start else row.facts.startable_at
            for row, start in zip(written, found, strict=True)
        ],
        "deadline_at": [start.deadline if start else None for start in found],
    }
    execute(apply_sql.WRITE_GROUPS, parameters, prepare=True)


def counts_literal(counts: Mapping[S, int]) -> str:
    slots = [0] * _STATE_SLOTS
    for state, amount in counts.items():
        slots[state] = amount
    return apply_sql.array_of(slots) or "{}"


def _write_jobs(
    before: Mapping[int, JobRow],
    after: Mapping[int, JobRow],
    endings: Mapping[int, EndJob],
    now: datetime,
    actor: str,
) -> None:
    written = [job for job_id, job in after.items() if job != before[job_id] or job_id in endings]
    if not written:
        return
    parameters = {
        "job_id": [job.job_id for job in written],
        "state": [int(job.state) for job in written],
        "ending_as": [job.ending_as and int(job.ending_as) for job in written],
        "ending_reason": [job.ending_reason for job in written],
        "force": [job.job_id in endings and endings[job.job_id].force for job in written],
        "failure_reason": [job.failure_reason for job in written],
        "started_at": [job.started_at for job in written],
        "finished_at": [job.finished_at for job in written],
        "settled_at": [job.settled_at for job in written],
        "is_requeuing": [job.is_requeuing for job in written],
        "waits_for_jobs": [job.waits_for_jobs for job in written],
    }
    execute(apply_sql.WRITE_JOBS, parameters, prepare=True)
    moved = [job for job in written if job.state is not before[job.job_id].state]
    if moved:
        _add_job_history(moved, before, now, actor)


def note_job(job: JobRow, reason: Reason, *, message: str, now: datetime, actor: str) -> None:
    """Add a line without a change of state to the history of a job, whose lock the caller holds."""
    line = {
        "job_id": job.job_id,
        "task_id": None,
        "uid": None,
        "state_from": int(job.state),
        "state_to": int(job.state),
        "attempt_state": None,
        "reason": reason.value,
        "message": message,
        "at": now,
    }
    columns: dict[str, Any] = {name: [value] for name, value in line.items()}
    execute(apply_sql.ADD_HISTORY, {**columns, "actor": actor})


def _add_job_history(
    jobs: Sequence[JobRow], before: Mapping[int, JobRow], now: datetime, actor: str
) -> None:
    nothing = [None] * len(jobs)
    parameters = {
        "job_id": [job.job_id for job in jobs],
        "task_id": nothing,
        "uid": nothing,
        "state_from": [int(before[job.job_id].state) for job in jobs],
        "state_to": [int(job.state) for job in jobs],
        "attempt_state": nothing,
        "reason": [job.ending_reason or "tasks_decided" for job in jobs],
        "message": [job.failure_reason for job in jobs],
        "at": [now] * len(jobs),
        "actor": actor,
    }
    execute(apply_sql.ADD_HISTORY, parameters, prepare=True)
