"""The only writer of state columns: apply effects by bulk compare-and-set, with history.

Callers hold the locks of all jobs concerned (`queries.locks.lock_jobs`) and pass the rows read
under them. Every change of a task updates its group's counts and may change its job (`apply_jobs`).
Resulting messages (stops, wakes) are sent after the commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import TextField, Value
from django.db.models.functions import Concat, Left

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.hooks.lifecycle import note_placed, note_started
from controlplane.commands.state import apply_sql
from controlplane.commands.state.apply_jobs import TickWakes, counts_literal, follow_tasks
from controlplane.commands.state.cell_changes import (
    CellChangeNote,
    lock_cells_before,
    record_cell_changes,
)
from controlplane.commands.state.shapes import insert_grown_shapes
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.enrolment import describe_hold
from controlplane.domain.convergence.lost_cells import EXCLUSIVE_MARGIN_SECONDS
from controlplane.domain.integrity import Repair
from controlplane.domain.state.effects import (
    ChangeCell,
    ChangePool,
    ChangeTask,
    ClearAlert,
    Effects,
    ForceStops,
    NominateTasks,
    Placement,
    RaiseAlert,
)
from controlplane.domain.state.group_counts import JobContext, first_starts
from controlplane.domain.state.job_rollup import JobRow
from controlplane.domain.state.states import ACTIVE, TERMINAL, CallbackOn, CellState
from controlplane.domain.state.transitions import Counters
from controlplane.models import Cell
from controlplane.outbox import cells, wakes
from controlplane.queries.cells.keys import load_addresses
from controlplane.queries.cells.stops import load_stops
from controlplane.queries.sql import encoded, execute, named_rows, rows

# Fields of `ChangeTask` that `CHANGE_TASKS` takes unchanged.
_TASK_FIELDS = (
    *("task_id", "task_from", "task_to", "attempt_open", "not_before", "prefer_cell_id"),
    *("started_at", "failure_reason", "at", "nominated_cell_id", "nominated_until"),
)
_COUNTER_FIELDS = tuple(item.name for item in fields(Counters))

_NO_JOBS: Mapping[int, JobRow] = MappingProxyType({})


@dataclass(slots=True)
class ApplyResult:
    """The number of changed tasks, and the ids of changed cells (`moved`), ascending.

    `stale`: changes of tasks whose state was not the expected one; `stops`: attempts whose stop is
    sent.
    """

    changed: int = 0
    stale: int = 0
    moved: list[int] = field(default_factory=list)
    stops: list[UUID] = field(default_factory=list)


def apply(
    effects: Effects, *, now: datetime, actor: str = "", jobs: Mapping[int, JobRow] = _NO_JOBS
) -> ApplyResult:
    """Apply all effects of a decision; send stops and wakes after the commit.

    `jobs`: all jobs concerned, read under their locks; a change of a task of another job is stale.
    `actor`: its name in the history of tasks and jobs.
    """
    applied, woken = ApplyResult(), TickWakes(placement=effects.frees)
    if effects.changes or effects.endings or effects.unblocked or effects.derived:
        _change_jobs(effects, jobs, now, actor, applied, woken)
    for stops in effects.stops:
        applied.stops += _force_stops(stops, now)
    _nominate(effects.nominations, now)
    for pool in effects.pools:
        _change_pool(pool)
    moved = _change_cells(effects.cells, now)
    applied.moved = [change.cell_id for change in moved]
    woken.placement |= any(change.state is CellState.READY for change in moved)
    cleared = [alert for change in moved for alert in change.cleared]
    _clear_alerts([*effects.cleared, *cleared], now)
    raised = [change.alert for change in moved if change.alert is not None]
    _raise_alerts([*effects.alerts, *raised], now)
    _send_after_commit(applied.stops, woken)
    return applied


def _send_after_commit(stops: Sequence[UUID], woken: TickWakes) -> None:
    """Send stops and wakes. They may be lost: Sync repeats stops, and ticks run periodically."""
    if stops:
        transaction.on_commit(partial(_send_stops, list(stops)), robust=True)
    if woken.placement:
        transaction.on_commit(wakes.wake_placement, robust=True)
    if woken.callbacks:
        transaction.on_commit(wakes.wake_callbacks, robust=True)
    if woken.convergence:
        transaction.on_commit(wakes.wake_convergence, robust=True)


def _send_stops(uids: Sequence[UUID]) -> None:
    by_cell = load_stops(uids)
    addresses = load_addresses(set(by_cell))
    cells.send(
        [
            (addresses[cell_id], orders.body())
            for cell_id, stops in by_cell.items()
            if cell_id in addresses
            for orders in cells.split_orders((), stops, {})
        ]
    )


def _change_jobs(
    effects: Effects,
    jobs: Mapping[int, JobRow],
    now: datetime,
    actor: str,
    applied: ApplyResult,
    woken: TickWakes,
) -> None:
    """Move tasks and attempts, end jobs, and derive the jobs."""
    changes = effects.changes
    done = _change_tasks([change for change in changes if change.job_id in jobs])
    kept = [change for change in changes if change.task_id in done]
    _change_attempts(kept)
    _add_steps(kept, actor)
    note_started(kept, jobs=jobs, at=now)
    applied.changed, applied.stale = len(kept), len(changes) - len(kept)
    for change in kept:
        attempt = change.attempt
        if attempt is not None and attempt.release is not None:
            woken.placement = True
        elif attempt is not None and (attempt.stop_reason is not None or attempt.stop_force):
            applied.stops.append(attempt.uid)
        if change.task_to is S.PENDING and not change.attempt_open:
            woken.placement = True
        # Identical tasks may wait for its result, or for its end.
        if done[change.task_id] and change.task_from in ACTIVE and change.task_to not in ACTIVE:
            woken.convergence = True
    ended = [
        change.task_id
        for change in kept
        if jobs[change.job_id].callback_on is CallbackOn.TASK
        and change.task_to in TERMINAL
        and change.task_from not in TERMINAL
    ]
    if ended:
        woken.callbacks |= bool(execute(apply_sql.ADD_TASK_CALLBACKS, [now, now, now, ended]))
    moves = [
        (change.job_id, change.group_id, change.task_from, change.task_to, change.by_dependency)
        for change in kept
    ]
    given = JobContext(
        endings={ending.job_id: ending for ending in effects.endings if ending.job_id in jobs},
        starts=first_starts(kept),
        unblocked=frozenset(effects.unblocked),
    )
    touched = {change.job_id for change in kept}.union(given.endings, given.unblocked)
    touched = touched.union(effects.derived) & set(jobs)
    follow_tasks(jobs, touched, moves, given, now=now, actor=actor, woken=woken)


def place_tasks(
    placements: Sequence[Placement],
    *,
    jobs: Mapping[int, JobRow],
    now: datetime,
    start_before: datetime,
    actor: str,
) -> list[Placement]:
    """Create the attempts of tasks that are still placeable; return their placements.

    The caller has locked and checked the cells.
    """
    if not placements:
        return []
    columns = (
        "uid",
        "task_id",
        "group_id",
        "job_id",
        "cell_id",
        "incarnation",
        "number",
        "concurrency_id",
    )
    parameters: dict[str, Any] = {
        name: [getattr(placement, name) for placement in placements] for name in columns
    }
    parameters |= {"now": now, "start_before": start_before, "actor": actor}
    placed = {task_id for (task_id,) in rows(apply_sql.PLACE_TASKS, parameters, prepare=True)}
    kept = [placement for placement in placements if placement.task_id in placed]
    note_placed(((item.job_id, item.uid) for item in kept), jobs=jobs, at=now)
    moves = [(item.job_id, item.group_id, S.PENDING, S.ASSIGNED, False) for item in kept]
    touched = {item.job_id for item in kept}
    follow_tasks(jobs, touched, moves, JobContext(), now=now, actor=actor, woken=TickWakes())
    return kept


def hide_jobs(job_ids: Sequence[int], *, actor: str, why: str, now: datetime) -> list[int]:
    """Hide ended jobs, whose locks the caller holds, and free their guids; return the hidden ones.

    Abandon their pending callbacks and write an audit line for each.
    """
    # Arrays of PostgreSQL begin at 1, states at 0.
    states = ["", *(state.name for state in S)]
    parameters = {
        "ids": list(job_ids),
        "why": why,
        "now": now,
        "states": states,
    }
    found = named_rows(apply_sql.HIDE_JOBS, parameters)
    entries = [
        AuditEntry(
            Action.DELETE_TASK if job.is_one_off else Action.DELETE_JOB,
            f"task {job.guid}" if job.is_one_off else f"job {job.id}",
            job.text,
            project_id=job.project_id,
        )
        for job in found
    ]
    record(*entries, actor=actor, now=now)
    return [job.id for job in found]


def _force_stops(stops: ForceStops, now: datetime) -> list[UUID]:
    """Force stops; return the attempts whose stop was not forced before."""
    parameters = [now, stops.job_id, stops.task_id, stops.task_id]
    return [uid for (uid,) in rows(apply_sql.FORCE_STOPS, parameters)]


def _nominate(nominations: Sequence[NominateTasks], now: datetime) -> None:
    """Reserve capacity for the first waiting tasks without a reservation of each group.

    Skip tasks in backoff: their siblings would use up the reservation. Tasks that avoid a cell come
    last, because the capacity may be on that cell.
    """
    if nominations:
        parameters = {
            name: [getattr(item, name) for item in nominations]
            for name in ("group_id", "shape_id", "cell_id", "count", "until")
        }
        execute(apply_sql.NOMINATE_TASKS, {**parameters, "now": now})


def _change_pool(change: ChangePool) -> None:
    execute(
        "UPDATE controlplane_pool SET loss_held_at = %s WHERE id = %s",
        [change.held_at, change.pool_id],
    )
    if change.lease_until is not None:
        execute(apply_sql.EXTEND_SILENT_LEASES, [change.pool_id, change.lease_until])


def _change_cells(changes: Sequence[ChangeCell], now: datetime) -> list[ChangeCell]:
    """Change cells by compare-and-set, in the order of ids; return the applied changes."""
    if not changes:
        return []
    before = lock_cells_before(change.cell_id for change in changes)
    moved, notes = [], []
    for change in sorted(changes, key=lambda change: change.cell_id):
        columns: dict[str, Any] = {
            "state": change.state.value,
            "state_reason": change.reason[:255],
            "quarantined_for": "" if change.cause is None else change.cause.value,
            "quarantined_until": change.until,
        }
        if change.ordered is not None:
            columns["ordered_state"] = change.ordered.value
            columns["drain_deadline_at"] = change.drain_deadline_at
            is_drain = change.ordered is CellState.DRAINING
            columns["draining_since"] = (
                before[change.cell_id].draining_since or now if is_drain else None
            )
        if change.trusted_at is not None:
            columns["trusted_at"] = change.trusted_at
        if change.revoked_at is not None:
            _hold_exclusive(change.cell_id, change.revoked_at)
            columns["revoked_at"] = change.revoked_at
        states = sorted(state.value for state in change.states)
        expected: dict[str, Any] = {"pk": change.cell_id, "state__in": states}
        if change.cause_before is not None:
            expected["quarantined_for"] = change.cause_before.value
        if _update_cell(expected, columns):
            moved.append(change)
            is_order = change.ordered is not None or change.revoked_at is not None
            note = CellChangeNote(
                before[change.cell_id], change.order_reason or None, change.actor, is_order
            )
            notes.append(note)
    record_cell_changes(notes, now=now)
    return moved


def _update_cell(expected: Mapping[str, Any], columns: Mapping[str, Any]) -> int:
    """Change a cell if it is as expected; one that differs from its enrolment never gets READY."""
    found = Cell.objects.filter(**expected)
    if columns["state"] != CellState.READY:
        return found.update(**columns)
    reason = Concat(Value(describe_hold("")), "mismatch", output_field=TextField())
    held = {"state": CellState.CORDONED.value, "state_reason": Left(reason, 255)}
    return found.filter(mismatch="").update(**columns) or found.exclude(mismatch="").update(
        **{**columns, **held}
    )


def _hold_exclusive(cell_id: int, now: datetime) -> None:
    """Keep the exclusive attempts of a revoked cell until its lease and their guard have ended.

    The locks, in the order of those of reports, keep out heartbeats that extend the lease.
    """
    found = rows(apply_sql.LOCK_EXCLUSIVE, [cell_id])
    rows(apply_sql.LOCK_LEASE, [cell_id])
    parameters = {
        "uids": [uid for (uid,) in found],
        "now": now,
        "margin": EXCLUSIVE_MARGIN_SECONDS,
    }
    execute(apply_sql.HOLD_EXCLUSIVE, parameters)


def register_cell(
    cell_id: int,
    *,
    state: CellState,
    reason: str,
    facts: Mapping[str, Any],
    actor: str = "",
    now: datetime,
) -> None:
    """Write the facts of a cell's registration to its row. `actor`: who changed its enrolment."""
    columns = {"state": state.value, "state_reason": reason[:255], **facts}
    before = lock_cells_before([cell_id])
    Cell.objects.filter(pk=cell_id).update(**columns)
    record_cell_changes([CellChangeNote(row, actor=actor) for row in before.values()], now=now)


def _raise_alerts(alerts: Iterable[RaiseAlert], now: datetime) -> None:
    """Raise alerts; update the time of an open alert at most once a minute."""
    texts = sorted({(alert.kind, alert.subject): alert.text for alert in alerts}.items())
    if texts:
        parameters = {
            "kind": [kind for (kind, _), _ in texts],
            "subject": [subject for (_, subject), _ in texts],
            "text": [text for _, text in texts],
            "now": now,
        }
        execute(apply_sql.RAISE_ALERTS, parameters)


def _clear_alerts(alerts: Iterable[ClearAlert], now: datetime) -> None:
    listed = list(dict.fromkeys(alerts))
    if listed:
        parameters = {
            "kind": [alert.kind for alert in listed],
            "subject": [alert.subject for alert in listed],
            "now": now,
        }
        execute(apply_sql.CLEAR_ALERTS, parameters)


def _change_tasks(changes: Sequence[ChangeTask]) -> dict[int, int]:
    """Return the cache status of each changed task."""
    if not changes:
        return {}
    counters = [change.counters for change in changes]
    shapes = insert_grown_shapes(changes)
    parameters: dict[str, Any] = {
        **{name: [getattr(change, name) for change in changes] for name in _TASK_FIELDS},
        **{name: [getattr(counter, name) for counter in counters] for name in _COUNTER_FIELDS},
        "terminal": [change.task_to in TERMINAL for change in changes],
        "uid": [change.attempt.uid if change.attempt else None for change in changes],
        "avoid": [apply_sql.array_of(change.avoid_cell_ids) for change in changes],
        "shape_id": [shapes.get(change.task_id) for change in changes],
        "resources": [
            encoded(dict(change.resources)) if change.resources else None for change in changes
        ],
    }
    return dict(rows(apply_sql.CHANGE_TASKS, parameters, prepare=True))


def _change_attempts(changes: Sequence[ChangeTask]) -> None:
    pairs = [(change.attempt, change.at) for change in changes if change.attempt is not None]
    if not pairs:
        return
    parameters: dict[str, Any] = {
        name: [at if name == "at" else getattr(attempt, name) for attempt, at in pairs]
        for name in apply_sql.ATTEMPT_FIELDS
    }
    for name in ("usage", "details"):
        found = parameters[name]
        parameters[name] = [None if value is None else encoded(dict(value)) for value in found]
    execute(apply_sql.CHANGE_ATTEMPTS, parameters, prepare=True)


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
    execute(apply_sql.ADD_HISTORY, parameters, prepare=True)


def write_counts(counted: Mapping[int, tuple[Mapping[S, int], int]]) -> None:
    """Repair the derived columns of groups: by group the counts, and the number of excused tasks.

    The caller holds the locks of their jobs and derives these again afterwards.
    """
    counts = [counts_literal(counts) for counts, _ in counted.values()]
    excused = [excused for _, excused in counted.values()]
    execute(apply_sql.WRITE_COUNTS, [list(counted), counts, excused])


def repair_flag(flag: Repair, row_ids: Sequence[int], *, now: datetime) -> None:
    """Repair derived flags of rows; the caller holds the locks of their jobs."""
    execute(apply_sql.REPAIR_FLAG[flag], {"ids": sorted(row_ids), "now": now})
