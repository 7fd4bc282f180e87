"""One placement pass over one pool: load shapes, cells and rows, decide a plan, place its tasks."""

from dataclasses import dataclass
from datetime import datetime

import structlog
from django.conf import settings
from django.db import OperationalError

from controlplane import clock
from controlplane.commands.placement.allocate import PoolLimits, carry_out, keep_cursor
from controlplane.commands.placement.reject import reject
from controlplane.commands.placement.waiting import explain
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import in_turn, run_in_transaction
from controlplane.domain.placement.cycle.place import place
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.plugin_guard import Faults
from controlplane.domain.placement.cycle.prefilter import latest, outdated, screen
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.snapshot import PassFacts, PoolSnapshot
from controlplane.domain.state.effects import Effects, ExplainShape, RaiseAlert
from controlplane.queries.placement.pool_plugins import resolve
from controlplane.queries.placement.snapshot import (
    TASKS_PER_PASS,
    WaitingShapes,
    load_pass_facts,
    load_policy,
    load_snapshot,
)
from controlplane.ticks.make_room import make_room_safely

# The time limit of a pass: placements decided by then are kept, and the next pass continues.
SECONDS_PER_PASS = 2.0
PLUGIN_ALERT = "plugin_failed"
SHAPE_ALERT = "shape_unreadable"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a pool's pass. `covered`: all pending tasks were considered."""

    placed: int
    covered: bool
    snapshot: PoolSnapshot
    facts: PassFacts
    plan: PlacementPlan
    shapes: tuple[ExplainShape, ...]


def pass_pool_safely(waiting: WaitingShapes, *, now: datetime) -> tuple[int, bool] | None:
    """Return how many tasks a pool's pass placed, and whether it covered the pool.

    Return None while another process has the turn. A pass that fails raises an alert and does not
    delay the other pools. Placing, ending and evicting lock different jobs, so each has its own
    transaction. Pending reasons come last: nothing waits for them.
    """
    try:
        outcome = in_turn(lambda: pass_pool(waiting, now=now))
        if outcome is None:
            return None
        if outcome.plan.rejected:
            reject(outcome.plan.rejected, now=clock.now())
        if outcome.plan.unplaced:
            make_room_safely(outcome.snapshot, outcome.plan, outcome.facts)
        if outcome.shapes or outcome.plan.groups:
            run_in_transaction(lambda: explain(outcome.shapes, outcome.plan.groups))
    except OperationalError:
        raise
    except Exception as error:
        log.exception("pool_skipped", pool=waiting.pool_id)
        alert = RaiseAlert("pool_skipped", f"pool {waiting.pool_id}", repr(error)[:1000])
        apply(Effects(alerts=[alert]), now=now)
        return 0, False
    return outcome.placed, outcome.covered


def pass_pool(waiting: WaitingShapes, *, now: datetime) -> PassResult:
    """Decide one pass over the pool of `waiting` and place tasks; return the rest to apply."""
    name, policy = load_policy(waiting.pool_id)
    faults = Faults()
    chosen = resolve(policy, faults)
    snapshot = load_snapshot(
        waiting.pool_id,
        name,
        policy,
        waiting.shapes,
        now=now,
        with_owners=chosen.sequencer.uses_shares,
        with_nominations=waiting.is_room_kept,
    )
    board = CapacityMatrix(snapshot.cells, snapshot.shapes, policy.tokens)
    screened = screen(snapshot, chosen, board)
    facts = load_pass_facts(snapshot, screened, by_owner=chosen.sequencer.uses_shares)
    ends_at = clock.monotonic() + SECONDS_PER_PASS
    plan = place(
        snapshot,
        facts,
        chosen,
        limit=TASKS_PER_PASS,
        board=board,
        is_late=lambda: clock.monotonic() > ends_at,
    )
    placed = _carry_out(plan, snapshot)
    _report_faults(name, waiting, faults, now)
    reasons = (*screened.reasons, *outdated(snapshot, screened, facts))
    return PassResult(placed, plan.complete, snapshot, facts, plan, latest(reasons, plan))


def _carry_out(plan: PlacementPlan, snapshot: PoolSnapshot) -> int:
    policy = snapshot.policy
    # The snapshot may contain a release later than its `now`; placements must be later still.
    placed = carry_out(
        plan.placements,
        limits=PoolLimits(
            snapshot.pool_id,
            policy,
            has_quotas=bool(snapshot.quotas) and policy.is_bound_by_quotas,
            has_keys=bool(snapshot.key_usage),
        ),
        now=clock.now(),
        start_seconds=settings.CELLRUN.start_seconds,
    )
    if plan.cursor and plan.cursor != policy.cursor:
        keep_cursor(snapshot.pool_id, plan.cursor)
    return placed


def _report_faults(name: str, waiting: WaitingShapes, faults: Faults, now: datetime) -> None:
    """Raise alerts about failed plugins and unreadable rows."""
    alerts = [
        RaiseAlert(PLUGIN_ALERT, f"{plugin} of pool {name}", error)
        for plugin, error in faults.found.items()
    ]
    alerts += [
        RaiseAlert(SHAPE_ALERT, f"shape {shape_id}", f"its tasks are not placed: {error}"[:1000])
        for shape_id, error in waiting.unreadable
    ]
    if alerts:
        apply(Effects(alerts=alerts), now=now)
        log.error("placement_hindered", pool=name, why=[alert.text for alert in alerts])
