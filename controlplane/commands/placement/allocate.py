"""Carry out a placement plan: lock cells in order, check all limits again from the rows."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import transaction

from controlplane import clock
from controlplane.commands.cache.reservations import reserve
from controlplane.commands.placement.limits import within_keys, within_quotas, within_tokens
from controlplane.commands.state import apply_sql
from controlplane.commands.state.apply import place_tasks
from controlplane.commands.state.attempt_uids import draw_uids
from controlplane.commands.state.dispatch import send_runs
from controlplane.commands.state.transactions import for_each_batch
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.state.effects import Placement, PlaceTasks
from controlplane.domain.state.gangs import meets_minima, with_placed
from controlplane.domain.state.job_rollup import JobRow, gang_of
from controlplane.domain.state.states import CellState
from controlplane.queries.cells.capacity import lock_cells
from controlplane.queries.holds import find_jobs_of_held_projects
from controlplane.queries.locks import load_groups, lock_jobs
from controlplane.queries.placement.concurrency import load_rules
from controlplane.queries.sql import decoded, execute, rows


class ChosenTask(NamedTuple):
    """A task to place. `row`: of the plan; `number`: of its attempts so far.

    `grown`: its own request, if a retry rule increased that of the group; both are JSON.
    `cache_key`: that of a serializing group.
    """

    row: int
    task_id: int
    job_id: int
    group_id: int
    number: int
    task_index: int
    grown: str | None
    request: str
    cache_key: UUID | None


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of a pool beyond its cells; usage is read again under lock.

    `has_quotas`: some quotas bind the placed tasks; `has_keys`: some have a concurrency key.
    """

    pool_id: int
    policy: PoolPolicy
    has_quotas: bool
    has_keys: bool = False


def carry_out(
    placements: PlaceTasks, *, limits: PoolLimits, now: datetime, start_seconds: float
) -> int:
    """Carry out the placements of a plan; return how many tasks were placed.

    Each batch is one transaction; orders are sent after its commit. Skip single jobs that cannot be
    written, and placements that the rows no longer allow (task gone, cell full, quota used up, job
    ending or held).
    """
    start_before = now + timedelta(seconds=start_seconds)

    def place(job_ids: Sequence[int]) -> int:
        done = _place_jobs(set(job_ids), placements, limits, now, start_before)
        transaction.on_commit(lambda: send_runs(done, start_before=start_before), robust=True)
        return len(done)

    return sum(for_each_batch(placements.job_ids, place, what="placement"))


def keep_cursor(pool_id: int, cell: str) -> None:
    """Save where round-robin continues, also after a restart."""
    execute("UPDATE controlplane_pool SET cursor = %s WHERE id = %s", [cell, pool_id])


def _place_jobs(
    job_ids: set[int],
    placements: PlaceTasks,
    limits: PoolLimits,
    now: datetime,
    start_before: datetime,
) -> list[Placement]:
    # An ended job needs no condition: none of its tasks is PENDING.
    jobs = {
        job_id: job
        for job_id, job in lock_jobs(job_ids).items()
        if job.ending_as is None and not job.is_requeuing and not job.is_held
    }
    # An earlier holder of these locks may have released attempts later than the old `now`.
    now = clock.now()
    chosen = _choose_tasks(placements, set(jobs), now)
    requests = _requests(chosen)
    allowed = _check_cells(placements, chosen, requests, limits.policy.tokens, now)
    allowed = within_tokens(allowed, requests, limits.policy.tokens, limits.pool_id)
    if limits.has_keys:
        allowed = within_keys(allowed, load_rules({item.group_id for item in allowed}))
        # Attempts of another pool, made while this one waited for the keys, must not be later.
        now = clock.now()
    if limits.has_quotas:
        allowed = within_quotas(allowed, requests, limits.policy)
    allowed = _without_parts_of_gangs(allowed, jobs)
    identities = {task.task_id: task.cache_key for task in chosen if task.cache_key}
    allowed = reserve(allowed, identities, now=now)
    return place_tasks(allowed, jobs=jobs, now=now, start_before=start_before, actor="placement")


def _without_parts_of_gangs(
    allowed: Sequence[Placement], jobs: Mapping[int, JobRow]
) -> list[Placement]:
    """Return the placements without those of gangs that would still not meet their minima."""
    gangs = {job_id: job for job_id, job in jobs.items() if job.coscheduled}
    if not gangs:
        return list(allowed)
    placed = Counter(item.group_id for item in allowed)
    partial = set()
    for job_id, groups in load_groups(sorted(gangs)).items():
        after = [
            replace(group, counts=with_placed(group.counts, placed[row.facts.group_id]))
            for row, group in zip(groups, gang_of(groups), strict=True)
        ]
        if not meets_minima(after, gangs[job_id].min_available):
            partial.add(job_id)
    return [item for item in allowed if item.job_id not in partial]


# Group and shape; avoided cells, nominated and preferred cell.
_RowKey = tuple[int, int, tuple[int, ...] | None, int | None, int | None]


def _choose_tasks(placements: PlaceTasks, job_ids: set[int], now: datetime) -> list[ChosenTask]:
    """Return the tasks to place, without those of held projects.

    Plan rows with one key choose tasks together, so that no task is chosen twice.
    """
    wanted: dict[_RowKey, list[int]] = defaultdict(list)
    for row, group_id in enumerate(placements.group_ids):
        key = (
            group_id,
            placements.shape_ids[row],
            placements.avoid_cell_ids[row],
            placements.nominated_cell_ids[row],
            placements.prefer_cell_ids[row],
        )
        wanted[key] += [row] * placements.counts[row]
    keys = list(wanted)
    found = rows(
        apply_sql.CHOOSE_TASKS,
        {
            "group_id": [key[0] for key in keys],
            "shape_id": [key[1] for key in keys],
            "avoid": [apply_sql.array_of(key[2]) for key in keys],
            "nominated": [key[3] for key in keys],
            "prefer": [key[4] for key in keys],
            "count": [len(wanted[key]) for key in keys],
            "now": now,
        },
        prepare=True,
    )
    is_any_project_held = bool(found) and found[0][-1]
    allowed = job_ids - find_jobs_of_held_projects(job_ids) if is_any_project_held else job_ids
    return [
        ChosenTask(wanted[keys[ordinal - 1]].pop(), task_id, job_id, *rest)
        for ordinal, task_id, job_id, *rest, _ in found
        if job_id in allowed
    ]


def _requests(chosen: Iterable[ChosenTask]) -> dict[int, Mapping[str, int]]:
    """Return the requests of the groups: those of all their tasks that no retry rule increased."""
    found = {task.group_id: task.request for task in chosen}
    return {group_id: decoded(request) for group_id, request in found.items()}


def _check_cells(
    placements: PlaceTasks,
    chosen: Sequence[ChosenTask],
    requests: Mapping[int, Mapping[str, int]],
    tokens: Mapping[str, int],
    now: datetime,
) -> list[Placement]:
    """Return the placements that fit their locked cell; tokens are checked elsewhere."""
    cells = lock_cells({placements.cell_ids[task.row] for task in chosen})
    free = {
        cell_id: {name: amount - cell.used.get(name, 0) for name, amount in cell.capacity.items()}
        for cell_id, cell in cells.items()
        if cell.state is CellState.READY
    }
    uids: list[UUID] = draw_uids(len(chosen), now=now)
    allowed = []
    for uid, task in zip(uids, chosen, strict=True):
        cell_id = placements.cell_ids[task.row]
        left = free.get(cell_id)
        resources = None if task.grown is None else decoded(task.grown)
        request = {
            name: amount
            for name, amount in (resources or requests[task.group_id]).items()
            if name not in tokens
        }
        if left is None or any(amount > left.get(name, 0) for name, amount in request.items()):
            continue
        for name, amount in request.items():
            if amount:
                left[name] -= amount
        incarnation = cells[cell_id].incarnation
        allowed.append(
            Placement(
                uid,
                task.task_id,
                task.group_id,
                task.job_id,
                cell_id,
                incarnation,
                task.number + 1,
                task.task_index,
                resources=resources,
            )
        )
    return allowed
