"""Make room for the tasks that a pool's pass could not place: evict, or reserve for starving tasks.

An error here does not undo the placements of the pass.
"""

import structlog
from django.db import OperationalError

from controlplane import clock
from controlplane.commands.placement.evict import evict
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import in_turn
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.model.snapshot import PassFacts, PoolSnapshot
from controlplane.domain.placement.preemption.make_room import (
    make_room,
    reserve,
    starving,
    wants_room,
)
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.queries.placement.running_attempts import is_any_below, load_held

ROOM_ALERT = "no_room_made"

log = structlog.get_logger(__name__)


def make_room_safely(snapshot: PoolSnapshot, plan: PlacementPlan, facts: PassFacts) -> None:
    """Make room for the tasks without a place in `plan`; raise an alert about failed evictions."""
    try:
        in_turn(lambda: _make_room(snapshot, plan, facts))
    except OperationalError:
        raise
    except Exception as error:  # one invalid row must not end the pass
        log.exception("no_room_made", pool=snapshot.name)
        alert = RaiseAlert(ROOM_ALERT, f"pool {snapshot.name}", repr(error)[:1000])
        apply(Effects(alerts=[alert]), now=snapshot.now)


def _make_room(snapshot: PoolSnapshot, plan: PlacementPlan, facts: PassFacts) -> None:
    """Evict for tasks of higher bands; reserve room for starving ones."""
    waiting = facts.waiting
    wanting = wants_room(plan) if snapshot.policy.preemption else []
    starved = starving(snapshot, plan, waiting)
    cells = [cell.cell_id for cell in snapshot.cells]
    if wanting and not is_any_below(cells, min(item.shape.band for item in wanting)):
        wanting = []
    if not wanting and not starved:
        return
    held = load_held(cells)
    if wanting:
        evictions = make_room(
            snapshot, plan, waiting, held.running, held.leaving, held.leaving_scopes
        )
        served = {group for eviction in evictions for group in eviction.group_ids}
        starved = [item for item in starved if waiting.group_ids[item.row] not in served]
        if evictions:
            evict(evictions, now=clock.now())
    if starved:
        reserved = reserve(snapshot, plan, waiting, starved, held.running, held.leaving)
        apply(Effects(nominations=reserved), now=snapshot.now)
