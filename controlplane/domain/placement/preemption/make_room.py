"""Making room: the requests for `preempt`, and the tasks with reservations."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from controlplane.domain.placement.cycle.key_usage import KeyAccounting
from controlplane.domain.placement.cycle.plan import PlacementPlan, UnplacedRow
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import (
    EvictableAttempt,
    PendingRows,
    PoolSnapshot,
    ReleasingCapacity,
)
from controlplane.domain.placement.preemption.candidates import (
    RUNNING_JOBS,
    RUNNING_TASKS,
    Allowance,
    PreemptionRequest,
)
from controlplane.domain.placement.preemption.preempt import Eviction, choose_evictions
from controlplane.domain.placement.preemption.reservation import (
    GangPart,
    GangReservation,
    choose_gang_reservation,
    choose_reservation,
)
from controlplane.domain.scopes import Scope
from controlplane.domain.state.effects import NominateTasks
from controlplane.domain.state.states import Band

# Maximum number of tasks that get room by eviction in one pass.
EVICTIONS_PER_PASS = 100
# Maximum number of concurrent reservations for starving tasks in one pool.
RESERVATIONS = 2
# Minimum duration of a reservation.
_SHORTEST = timedelta(seconds=60)
# The cells of a gang become free one after another, which a shorter time would interrupt.
_SHORTEST_OF_GANG = timedelta(hours=1)


def wants_room(plan: PlacementPlan) -> list[UnplacedRow]:
    """Return the unplaced rows that may preempt: all except those of the BATCH band."""
    return [item for item in plan.unplaced if item.shape.band is not Band.BATCH]


def make_room(
    snapshot: PoolSnapshot,
    plan: PlacementPlan,
    waiting: PendingRows,
    running: Sequence[EvictableAttempt],
    leaving: Sequence[ReleasingCapacity],
    leaving_scopes: Mapping[Scope, Mapping[str, int]],
) -> list[Eviction]:
    """Return the evictions for unplaced rows of `plan`."""
    matrix = plan.board
    leaving_tokens: dict[str, int] = defaultdict(int)
    for item in leaving:
        for name, amount in item.resources.items():
            leaving_tokens[name] += amount
    return choose_evictions(
        _needs(plan, waiting),
        snapshot.cells,
        matrix.names,
        matrix.free,
        running,
        leaving=leaving,
        allowances=_allowances(plan, snapshot.policy, leaving_scopes, leaving_tokens),
        now=snapshot.now,
        limit=EVICTIONS_PER_PASS,
    )


def _needs(plan: PlacementPlan, waiting: PendingRows) -> Iterator[PreemptionRequest]:
    """Yield one request per task, or one for all tasks that must be placed together.

    There is none for tasks that their concurrency keys do not admit.
    """
    keys = plan.usage.keys.copy()
    for item in wants_room(plan):
        need = _need(item, waiting)
        for _ in range(_claim(keys, item)):
            yield need


def _claim(keys: KeyAccounting, item: UnplacedRow) -> int:
    """Charge the requests for which the key has room; return their number."""
    rule = item.shape.concurrency
    if not item.is_gang:
        return keys.claim(rule, min(item.count, EVICTIONS_PER_PASS))
    members, room = item.count + sum(other.count for other in item.others), keys.room(rule)
    return 0 if room is not None and room < members else min(keys.claim(rule, members), 1)


def _need(item: UnplacedRow, waiting: PendingRows) -> PreemptionRequest:
    return PreemptionRequest(
        shape=item.shape,
        group_id=waiting.group_ids[item.row],
        job_id=waiting.job_ids[item.row],
        count=item.count if item.is_gang else 1,
        usable=item.usable,
        least=item.least,
        most=item.most,
        is_new_job=item.is_new_job,
        others=tuple(_need(other, waiting) for other in item.others),
    )


def _allowances(
    plan: PlacementPlan,
    policy: PoolPolicy,
    leaving_scopes: Mapping[Scope, Mapping[str, int]],
    leaving_tokens: Mapping[str, int],
) -> list[Allowance]:
    """Return the free amounts of the enforced quotas and the tokens after terminating attempts end.

    Nominated tasks are already charged.
    """
    found = []
    for scope, state in plan.usage.states():
        binding = policy.binding(state.kind, state.limits)
        limits = dict(binding.resources)
        used = dict(state.resources)
        counted = (
            (RUNNING_TASKS, binding.running_tasks, state.running_tasks),
            (RUNNING_JOBS, binding.running_jobs, state.running_jobs - state.leaving_jobs),
        )
        for name, limit, amount in counted:
            if limit is not None:
                limits[name], used[name] = limit, amount
        gone = leaving_scopes.get(scope, {})
        free = {name: limits[name] - used.get(name, 0) + gone.get(name, 0) for name in limits}
        found.append(Allowance(scope, limits, free))
    left = plan.usage.tokens_left()
    if left:
        free = {name: amount + leaving_tokens.get(name, 0) for name, amount in left.items()}
        found.append(Allowance(None, {name: plan.usage.limit_of(name) for name in left}, free))
    return found


def starving(
    snapshot: PoolSnapshot, plan: PlacementPlan, waiting: PendingRows
) -> list[UnplacedRow]:
    """Return the starving tasks and gangs for which room is reserved, the longest wait first.

    Existing reservations of starving tasks count towards the limit, a gang as one; those of gangs
    and preemptors that do not starve do not.
    """
    if snapshot.policy.starvation_seconds is None:
        return []

    def is_starving(row: int) -> bool:
        return snapshot.policy.is_starving(waiting.since[row], snapshot.now)

    coscheduled = {shape.shape_id for shape in snapshot.shapes if shape.coscheduled}
    kept, gangs = 0, set[int]()
    for row, cell_id in enumerate(waiting.nominated_cell_ids):
        if cell_id is None or not is_starving(row):
            continue
        if waiting.shape_ids[row] in coscheduled:
            gangs.add(waiting.job_ids[row])
        else:
            kept += waiting.counts[row]
    found = [
        item
        for item in plan.unplaced
        if item.lacks_room
        and all(is_starving(one.row) for one in (item, *item.others) if one.count)
    ]
    found.sort(key=lambda item: (item.shape.band, waiting.since[item.row] or snapshot.now))
    keys = plan.usage.keys.copy()
    found = [item for item in found if _claim(keys, item)]
    return found[: max(RESERVATIONS - kept - len(gangs), 0)]


def reserve(
    snapshot: PoolSnapshot,
    plan: PlacementPlan,
    waiting: PendingRows,
    starved: Sequence[UnplacedRow],
    running: Sequence[EvictableAttempt],
    leaving: Sequence[ReleasingCapacity],
) -> list[NominateTasks]:
    """Reserve room for each starving task or gang, where it could be placed earliest."""
    patience = timedelta(seconds=snapshot.policy.starvation_seconds or 0)
    matrix, taken, found = plan.board, set[int](), list[NominateTasks]()
    for item in starved:
        if item.is_gang:
            places = _reserve_gang(snapshot, plan, waiting, item, running, leaving, taken)
            shortest = _SHORTEST_OF_GANG
        else:
            chosen = choose_reservation(
                item.shape,
                item.usable[0],
                snapshot.cells,
                matrix.names,
                matrix.free,
                [one for one in running if one.cell_id not in taken],
                leaving,
                now=snapshot.now,
            )
            places = [] if chosen is None else [(item.row, chosen[0], 1, chosen[1])]
            shortest = _SHORTEST
        if any(cell_id in taken for _, cell_id, _, _ in places):
            continue
        for row, cell_id, count, begins_at in places:
            taken.add(cell_id)
            until = max(snapshot.now, begins_at or snapshot.now) + max(patience, shortest)
            found.append(
                NominateTasks(waiting.group_ids[row], waiting.shape_ids[row], cell_id, count, until)
            )
    return found


def _reserve_gang(
    snapshot: PoolSnapshot,
    plan: PlacementPlan,
    waiting: PendingRows,
    gang: UnplacedRow,
    running: Sequence[EvictableAttempt],
    leaving: Sequence[ReleasingCapacity],
    taken: Collection[int],
) -> list[tuple[int, int, int, datetime | None]]:
    """Return (row, cell, count, earliest start) of all members that must start at once."""
    parts, matrix = (gang, *gang.others), plan.board
    best: GangReservation | None = None
    is_free = np.array([cell.cell_id not in taken for cell in snapshot.cells], dtype=bool)
    for place in range(len(gang.usable)):
        found = choose_gang_reservation(
            [
                GangPart(
                    part.shape,
                    waiting.group_ids[part.row],
                    part.count,
                    part.usable[place] & is_free,
                    part.least,
                    part.count if part.most is None else part.most,
                )
                for part in parts
            ],
            snapshot.cells,
            matrix.names,
            matrix.free,
            running,
            leaving,
            now=snapshot.now,
        )
        if found is not None and (best is None or found.rank < best.rank):
            best = found
    if best is None:
        return []
    return [
        (part.row, snapshot.cells[cell].cell_id, int(given[cell]), best.begins_at)
        for part, given in zip(parts, best.counts, strict=True)
        for cell in np.flatnonzero(given).tolist()
    ]
