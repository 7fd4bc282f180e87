"""Making room: whose need is put to `preempt`, and for whom a place is reserved."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

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

# Tasks that get a place by eviction in one pass; the next ones have their turn in the next.
EVICTIONS_PER_PASS = 100
# Places that are reserved in one pool at once for who would starve (the design's number).
RESERVATIONS = 2
# However impatient a pool is, a reserved place is kept at least so long.
_SHORTEST = timedelta(seconds=60)
# The places of a gang come free one after another: a shorter time would begin that anew.
_SHORTEST_OF_GANG = timedelta(hours=1)


def wants_room(plan: PlacementPlan) -> list[UnplacedRow]:
    """Who may have others evicted: who is more important than the least important."""
    return [item for item in plan.unplaced if item.shape.band is not Band.BATCH]


def make_room(
    snapshot: PoolSnapshot,
    plan: PlacementPlan,
    waiting: PendingRows,
    running: Sequence[EvictableAttempt],
    leaving: Sequence[ReleasingCapacity],
    leaving_scopes: Mapping[Scope, Mapping[str, int]],
) -> list[Eviction]:
    """Whom to evict for what found no room in `plan`."""
    board = plan.board
    leaving_tokens: dict[str, int] = defaultdict(int)
    for item in leaving:
        for name, amount in item.resources.items():
            leaving_tokens[name] += amount
    return choose_evictions(
        _needs(plan, waiting),
        snapshot.cells,
        board.names,
        board.free,
        running,
        leaving=leaving,
        allowances=_allowances(plan, snapshot.policy, leaving_scopes, leaving_tokens),
        now=snapshot.now,
        limit=EVICTIONS_PER_PASS,
    )


def _needs(plan: PlacementPlan, waiting: PendingRows) -> Iterator[PreemptionRequest]:
    """Return one for each task; one for all that must be placed together."""
    for item in wants_room(plan):
        need = _need(item, waiting)
        for _ in range(1 if item.is_gang else min(item.count, EVICTIONS_PER_PASS)):
            yield need


def _need(item: UnplacedRow, waiting: PendingRows) -> PreemptionRequest:
    return PreemptionRequest(
        shape=item.shape,
        group_id=waiting.group_ids[item.row],
        job_id=waiting.job_ids[item.row],
        count=item.count if item.is_gang else 1,
        usable=item.usable,
        is_new_job=item.is_new_job,
        others=tuple(_need(other, waiting) for other in item.others),
    )


def _allowances(
    plan: PlacementPlan,
    policy: PoolPolicy,
    leaving_scopes: Mapping[Scope, Mapping[str, int]],
    leaving_tokens: Mapping[str, int],
) -> list[Allowance]:
    """Return what each quota that binds, and the pool's tokens, have left once what is leaving has
    left.

    What is kept for nominated tasks is taken already.
    """
    found = []
    for scope, state in plan.ledger.states():
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
    left = plan.ledger.tokens_left()
    if left:
        free = {name: amount + leaving_tokens.get(name, 0) for name, amount in left.items()}
        found.append(Allowance(None, {name: plan.ledger.limit_of(name) for name in left}, free))
    return found


def starving(
    snapshot: PoolSnapshot, plan: PlacementPlan, waiting: PendingRows
) -> list[UnplacedRow]:
    """Return the tasks and gangs that waited so long that room is reserved for them.

    The longest wait comes first; there are few at once. Room that is kept for others that starve
    counts, a gang as one; that of gangs and preemptors that do not starve does not.
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
        if item.lacks_room and all(is_starving(one.row) for one in (item, *item.others))
    ]
    found.sort(key=lambda item: (item.shape.band, waiting.since[item.row] or snapshot.now))
    return found[: max(RESERVATIONS - kept - len(gangs), 0)]


def reserve(
    snapshot: PoolSnapshot,
    plan: PlacementPlan,
    waiting: PendingRows,
    starved: Sequence[UnplacedRow],
    running: Sequence[EvictableAttempt],
    leaving: Sequence[ReleasingCapacity],
) -> list[NominateTasks]:
    """Keep room for each task or gang that starves, where it could be placed first."""
    patience = timedelta(seconds=snapshot.policy.starvation_seconds or 0)
    board, taken, found = plan.board, set[int](), list[NominateTasks]()
    for item in starved:
        if item.is_gang:
            places = _reserve_gang(snapshot, plan, item, running, leaving, taken)
            shortest = _SHORTEST_OF_GANG
        else:
            chosen = choose_reservation(
                item.shape,
                item.usable[0],
                snapshot.cells,
                board.names,
                board.free,
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
            found.append(NominateTasks(waiting.group_ids[row], cell_id, count, until))
    return found


def _reserve_gang(
    snapshot: PoolSnapshot,
    plan: PlacementPlan,
    gang: UnplacedRow,
    running: Sequence[EvictableAttempt],
    leaving: Sequence[ReleasingCapacity],
    taken: Collection[int],
) -> list[tuple[int, int, int, datetime | None]]:
    """Return (row, cell, count, when it begins) of all members that must start at once."""
    parts, board = (gang, *gang.others), plan.board
    best: GangReservation | None = None
    is_free = np.array([cell.cell_id not in taken for cell in snapshot.cells], dtype=bool)
    for place in range(len(gang.usable)):
        found = choose_gang_reservation(
            [GangPart(part.shape, part.count, part.usable[place] & is_free) for part in parts],
            snapshot.cells,
            board.names,
            board.free,
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
