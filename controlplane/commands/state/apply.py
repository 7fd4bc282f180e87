"""The only writer of state columns: effects in, bulk compare-and-set and history out.

Callers hold the locks of all jobs concerned (`queries.locks.lock_jobs`) and pass the rows
read under them. Every change of a task moves its group's counts and may move its job; what has to
leave (stops, wakes) is collected in `ApplyResult` and sent after commit by `dispatch`.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from controlplane import clock
from controlplane.commands.hooks.lifecycle import note_placed, note_started
from controlplane.commands.state import apply_sql
from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity import Repair
from controlplane.domain.state.dependencies import DependencyStatus, job_standing
from controlplane.domain.state.effects import ChangeCell, ChangeTask, EndJob, RaiseAlert
from controlplane.domain.state.group_counts import JobContext, Move, first_starts, move_counts
from controlplane.domain.state.job_rollup import (
    GroupRow,
    JobRow,
    StartableGroup,
    has_follow_up,
    milestones_of,
    newly_startable,
    roll_job,
)
from controlplane.domain.state.states import TERMINAL, CallbackOn, CellState
from controlplane.models import Cell
from controlplane.queries.locks import (
    find_open_dependencies,
    find_unreleased_jobs,
    load_groups,
)
from controlplane.queries.sql import execute, rows

_STATE_SLOTS = max(S) + 1


@dataclass(slots=True)
class ApplyResult:
    """The changes that were made, and the messages to send once they are committed."""

    changed: int = 0
    stale: int = 0
    stops: list[UUID] = field(default_factory=list)
    freed: bool = False
    follow_up: bool = False
    callbacks: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """One task that got an attempt on a cell."""

    uid: UUID
    task_id: int
    group_id: int
    job_id: int
    cell_id: int
    incarnation: str
    number: int
    index: int


def apply_changes(
    changes: Sequence[ChangeTask],
    *,
    jobs: Mapping[int, JobRow],
    now: datetime,
    actor: str,
    endings: Sequence[EndJob] = (),
    unblocked: Collection[int] = (),
    again: Collection[int] = (),
) -> ApplyResult:
    """Move tasks and attempts, end jobs, derive the jobs. `jobs`: read under their locks.

    `unblocked`: jobs that do not wait for other jobs any more; `again`: jobs to derive in any case.
    """
    done = _change_tasks([change for change in changes if change.job_id in jobs])
    kept = [change for change in changes if change.task_id in done]
    _change_attempts(kept)
    _add_steps(kept, actor)
    note_started(kept, jobs=jobs, at=now)
    applied = ApplyResult(changed=len(kept), stale=len(changes) - len(kept))
    for change in kept:
        attempt = change.attempt
        if attempt is not None and attempt.release is not None:
            applied.freed = True
        elif attempt is not None and (attempt.stop_reason is not None or attempt.stop_force):
            applied.stops.append(attempt.uid)
        if change.task_to is S.PENDING and not change.attempt_open:
            applied.freed = True
    ended = [
        change.task_id
        for change in kept
        if jobs[change.job_id].callback_on is CallbackOn.TASK
        and change.task_to in TERMINAL
        and change.task_from not in TERMINAL
    ]
    if ended:
        applied.callbacks |= bool(execute(apply_sql.ADD_TASK_CALLBACKS, [now, now, now, ended]))
    touched = {change.job_id for change in kept} | {ending.job_id for ending in endings}
    touched = touched.union(unblocked, again) & set(jobs)
    moves = [
        (change.job_id, change.group_id, change.task_from, change.task_to, change.by_dependency)
        for change in kept
    ]
    given = JobContext(
        endings={ending.job_id: ending for ending in endings if ending.job_id in jobs},
        starts=first_starts(kept),
        unblocked=frozenset(unblocked),
    )
    _roll(jobs, touched, moves, given, now, actor, applied)
    return applied


def place_tasks(
    placements: Sequence[Placement],
    *,
    jobs: Mapping[int, JobRow],
    now: datetime,
    start_before: datetime,
    actor: str,
) -> list[Placement]:
    """Give each task its attempt; the ones that were really placed.

    Cells are locked and checked by the caller.
    """
    if not placements:
        return []
    columns = ("uid", "task_id", "group_id", "job_id", "cell_id", "incarnation", "number")
    parameters: dict[str, Any] = {
        name: [getattr(placement, name) for placement in placements] for name in columns
    }
    parameters |= {"now": now, "start_before": start_before, "actor": actor}
    placed = {task_id for (task_id,) in rows(apply_sql.PLACE_TASKS, parameters)}
    kept = [placement for placement in placements if placement.task_id in placed]
    note_placed(((item.job_id, item.uid) for item in kept), jobs=jobs, at=now)
    moves = [(item.job_id, item.group_id, S.PENDING, S.ASSIGNED, False) for item in kept]
    _roll(jobs, {item.job_id for item in kept}, moves, JobContext(), now, actor, ApplyResult())
    return kept


def force_stops(job_id: int, *, now: datetime, task_id: int | None = None) -> list[UUID]:
    """Force the stops under way of a job, or of one of its tasks; those that were not forced."""
    found = rows(
        """
        UPDATE controlplane_attempt SET stop_forced_at = %s
        WHERE job_id = %s AND finished_at IS NOT NULL AND released_at IS NULL
          AND stop_forced_at IS NULL AND (%s::bigint IS NULL OR task_id = %s)
        RETURNING uid
        """,
        [now, job_id, task_id, task_id],
    )
    return [uid for (uid,) in found]


def hide_jobs(job_ids: Sequence[int], *, actor: str, why: str, now: datetime) -> list[int]:
    """Delete jobs that have ended: hide them and free their guids; return the hidden ones.

    Their locks are held. Their pending callbacks are abandoned; an audit line stays.
    """
    # Arrays of PostgreSQL begin at 1, states at 0.
    states = ["", *(state.name for state in S)]
    parameters = {
        "ids": list(job_ids),
        "actor": actor[:150],
        "why": why,
        "now": now,
        "states": states,
    }
    return [job_id for (job_id,) in rows(apply_sql.HIDE_JOBS, parameters)]


def change_cells(changes: Iterable[ChangeCell]) -> list[int]:
    """Move cells, by id, each from a state that it is expected in; the ids of those that moved."""
    moved = []
    for change in sorted(changes, key=lambda change: change.cell_id):
        states = sorted(state.value for state in change.states)
        columns: dict[str, Any] = {
            "state": change.state.value,
            "state_reason": change.reason[:255],
            "quarantined_for": "" if change.cause is None else change.cause.value,
            "quarantined_until": change.until,
        }
        if change.ordered is not None:
            columns["ordered_state"] = change.ordered.value
            columns["drain_deadline_at"] = change.drain_deadline_at
        if change.trusted_at is not None:
            columns["trusted_at"] = change.trusted_at
        expected: dict[str, Any] = {"pk": change.cell_id, "state__in": states}
        if change.cause_before is not None:
            expected["quarantined_for"] = change.cause_before.value
        if Cell.objects.filter(**expected).update(**columns):
            moved.append(change.cell_id)
    return moved


def register_cell(cell_id: int, *, state: CellState, reason: str, facts: Mapping[str, Any]) -> None:
    """Write the facts of a cell's registration to its row."""
    Cell.objects.filter(pk=cell_id).update(state=state.value, state_reason=reason, **facts)


def raise_alerts(alerts: Iterable[RaiseAlert], *, now: datetime) -> None:
    """Raise each alert; of an open one, update the time by the minute."""
    listed = sorted({(alert.kind, alert.subject): alert.text for alert in alerts}.items())
    if not listed:
        return
    parameters = {
        "kind": [kind for (kind, _), _ in listed],
        "subject": [subject for (_, subject), _ in listed],
        "text": [text for _, text in listed],
        "now": now,
    }
    execute(apply_sql.RAISE_ALERTS, parameters)


def clear_alerts(
    kinds: str | Sequence[str], subjects: str | Sequence[str], *, now: datetime
) -> None:
    """Clear the alerts of these kinds about these subjects."""
    listed = [[given] if isinstance(given, str) else list(given) for given in (kinds, subjects)]
    if all(listed):
        execute(apply_sql.CLEAR_ALERTS, [*listed, now])


def _change_tasks(changes: Sequence[ChangeTask]) -> set[int]:
    if not changes:
        return set()
    counters = [change.counters for change in changes]
    parameters = {
        "task_id": [change.task_id for change in changes],
        "state_from": [int(change.task_from) for change in changes],
        "state_to": [int(change.task_to) for change in changes],
        "terminal": [change.task_to in TERMINAL for change in changes],
        "uid": [change.attempt.uid if change.attempt else None for change in changes],
        "attempt_open": [change.attempt_open for change in changes],
        "failure": [counter.failure for counter in counters],
        "preemption": [counter.preemption for counter in counters],
        "system": [counter.system for counter in counters],
        "system_row": [counter.system_row for counter in counters],
        "refusal_row": [counter.refusal_row for counter in counters],
        "crashes": [counter.consecutive_crashes for counter in counters],
        "not_before": [change.not_before for change in changes],
        "avoid": [apply_sql.array_of(change.avoid_cell_ids) for change in changes],
        "prefer": [change.prefer_cell_id for change in changes],
        "started_at": [change.started_at for change in changes],
        "failure_reason": [change.failure_reason for change in changes],
        "at": [change.at for change in changes],
        "nominated_cell": [change.nominated_cell_id for change in changes],
        "nominated_until": [change.nominated_until for change in changes],
    }
    return {task_id for (task_id,) in rows(apply_sql.CHANGE_TASKS, parameters)}


def _change_attempts(changes: Sequence[ChangeTask]) -> None:
    pairs = [(change.attempt, change.at) for change in changes if change.attempt is not None]
    if not pairs:
        return
    parameters: dict[str, Any] = {
        name: [getattr(attempt, name) for attempt, _ in pairs] for name in apply_sql.ATTEMPT_COLUMNS
    }
    parameters["state_from"] = [int(attempt.state_from) for attempt, _ in pairs]
    parameters["state_to"] = [int(attempt.state_to) for attempt, _ in pairs]
    parameters["usage"] = [
        None if attempt.usage is None else json.dumps(dict(attempt.usage)) for attempt, _ in pairs
    ]
    parameters["details"] = [
        None if attempt.details is None else json.dumps(dict(attempt.details))
        for attempt, _ in pairs
    ]
    parameters["at"] = [at for _, at in pairs]
    execute(apply_sql.CHANGE_ATTEMPTS, parameters)


def _add_steps(changes: Sequence[ChangeTask], actor: str) -> None:
    steps = [(change, step) for change in changes for step in change.steps]
    if not steps:
        return
    parameters = {
        "job_id": [change.job_id for change, _ in steps],
        "task_id": [change.task_id for change, _ in steps],
        "uid": [change.attempt.uid if change.attempt else None for change, _ in steps],
        "state_from": [int(step.task_from) for _, step in steps],
        "state_to": [int(step.task_to) for _, step in steps],
        "attempt_state": [step.attempt_state and int(step.attempt_state) for _, step in steps],
        "reason": [step.reason for _, step in steps],
        "message": [step.message for _, step in steps],
        "at": [step.at for _, step in steps],
        "actor": actor,
    }
    execute(apply_sql.ADD_HISTORY, parameters)


def _roll(
    jobs: Mapping[int, JobRow],
    touched: set[int],
    moves: Sequence[Move],
    given: JobContext,
    now: datetime,
    actor: str,
    applied: ApplyResult,
) -> None:
    """Move the counts of groups by `moves`, and let each touched job follow."""
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
    applied.freed |= bool(startable)
    settled = [
        job_id
        for job_id, job in after.items()
        if job.callback_on is CallbackOn.JOB
        and job.settled_at is not None
        and before[job_id].settled_at is None
    ]
    if settled:
        applied.callbacks |= bool(execute(apply_sql.ADD_JOB_CALLBACKS, [now, now, now, settled]))
    for job_id, job in after.items():
        applied.freed |= before[job_id].is_bouncing and not job.is_bouncing
        applied.follow_up |= has_follow_up(job) and job != before[job_id]


def _stamp_dependencies(jobs: Sequence[JobRow], now: datetime) -> None:
    """Record which dependencies on `jobs` came true, or never will."""
    watched = {job.job_id: job for job in jobs if job.is_watched}
    if not watched:
        return
    stamped = []
    for dependency_id, on_job_id, until in find_open_dependencies(list(watched)):
        standing = job_standing(milestones_of(watched[on_job_id]), until)
        if standing is not DependencyStatus.OPEN:
            stamped.append((dependency_id, standing is DependencyStatus.SATISFIED))
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
    """Jobs end no earlier than what was placed while their locks were waited for."""
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
    """A finished job is settled when no attempt of it holds capacity any more."""
    finished = [
        job_id for job_id, job in jobs.items() if job.finished_at and job.settled_at is None
    ]
    holding = find_unreleased_jobs(finished) if finished else set()
    return {
        job_id: replace(job, settled_at=now)
        if job_id in finished and job_id not in holding
        else job
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
        "counts": [_counts_literal(row.facts.counts) for row in written],
        "excused": [row.killed_by_dependency for row in written],
        "startable_at": [
            start.at if start else row.facts.startable_at
            for row, start in zip(written, found, strict=True)
        ],
        "deadline_at": [start.deadline if start else None for start in found],
    }
    execute(apply_sql.WRITE_GROUPS, parameters)


def _counts_literal(counts: Mapping[S, int]) -> str:
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
        "is_bouncing": [job.is_bouncing for job in written],
        "waits_for_jobs": [job.waits_for_jobs for job in written],
    }
    execute(apply_sql.WRITE_JOBS, parameters)
    moved = [job for job in written if job.state is not before[job.job_id].state]
    if moved:
        _add_job_history(moved, before, now, actor)


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
    execute(apply_sql.ADD_HISTORY, parameters)


def write_counts(counted: Mapping[int, tuple[Mapping[S, int], int]]) -> None:
    """Repair the derived columns of groups: by group the counts, and how many tasks are excused.

    Called with the locks of their jobs, which are derived `again`.
    """
    counts = [_counts_literal(counts) for counts, _ in counted.values()]
    excused = [excused for _, excused in counted.values()]
    execute(apply_sql.WRITE_COUNTS, [list(counted), counts, excused])


def mend_flag(flag: Repair, row_ids: Sequence[int], *, now: datetime) -> None:
    """Repair the flags of rows that depend on other rows; called with the same locks."""
    execute(apply_sql.MEND_FLAG[flag], {"ids": sorted(row_ids), "now": now})
