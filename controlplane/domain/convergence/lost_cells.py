"""Rule 1: declare cells with an expired lease lost, and requeue their tasks.

Leases expire only while the control plane can receive heartbeats. As in Iris, the loss of a cell is
charged to the preemption budget of its tasks. If more than half of a pool is silent at once, a
network fault is assumed and the losses are suppressed at first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from controlplane.domain.convergence.cell_health import clear_suspicions
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.effects import (
    ChangeCell,
    ChangePool,
    ChangeTask,
    ClearAlert,
    Effects,
    RaiseAlert,
)
from controlplane.domain.state.facts import AttemptFacts, LeaseFacts, PoolSilence, TaskFacts
from controlplane.domain.state.states import (
    TERMINAL,
    CellState,
    Exclusive,
    MassLoss,
    Reason,
    ReleaseKind,
)
from controlplane.domain.state.task_changes import ChangeCause, change_task, keep_task, release_task
from controlplane.domain.state.transitions import Event

# Time between the loss of a cell and the start of its exclusive tasks elsewhere.
EXCLUSIVE_MARGIN_SECONDS = 10.0
HELD = "exclusive_held"
"""Kind of alert about an attempt that only its cell or an operator can release."""

LOST = "cell_lost"
MASS_LOSS = "mass_loss"
"""Kinds of alerts about a lost cell, and about a pool with suppressed losses."""

# If fewer cells are silent, independent failures are assumed.
_MASS_CELLS = 3

_LIVING = frozenset(CellState) - {CellState.LOST}


def decide_lost(
    leases: Iterable[LeaseFacts], pools: Iterable[PoolSilence], *, now: datetime, policy: Policy
) -> Effects:
    """Decide which cells are lost, and in which pools losses are suppressed from now on.

    The caller has verified that the control plane receives messages. `pools`: all pools of the
    leases, and pools with suppressed losses.
    """
    over = [lease for lease in leases if _is_over(lease, now, policy)]
    decisions = [
        _decide_pool(pool, [lease for lease in over if lease.pool_id == pool.pool_id], now, policy)
        for pool in pools
    ]
    return Effects(
        cells=[change for decision in decisions for change in decision.cells],
        pools=[change for decision in decisions for change in decision.pools],
        alerts=[alert for decision in decisions for alert in decision.alerts],
        cleared=[alert for decision in decisions for alert in decision.cleared],
    )


def _decide_pool(
    pool: PoolSilence, over: Sequence[LeaseFacts], now: datetime, policy: Policy
) -> Effects:
    certain = [
        lease
        for lease in over
        # A new incarnation proves that the machine is reachable.
        if lease.has_left or lease.is_replaced or _is_confirmed(lease, pool, now)
    ]
    doubtful = [lease for lease in over if lease not in certain]
    lost, held_at = [_lose(lease) for lease in certain], pool.held_at
    if not _is_mass(pool):
        if held_at is None:
            return Effects(cells=[*lost, *map(_lose, doubtful)])
        # Cells return over several ticks, so the others get one more lease.
        until = now + timedelta(seconds=policy.lease * policy.lease_factor)
        back = ChangePool(pool.pool_id, None, lease_until=until)
        return Effects(cells=lost, pools=[back], cleared=[ClearAlert(MASS_LOSS, pool.name)])
    if held_at is None and not doubtful:
        return Effects(cells=lost)
    if held_at is None or held_at > now:  # later than now: the clock was set back
        held = ChangePool(pool.pool_id, now)
        return Effects(cells=lost, pools=[held], alerts=[mass_alert(pool, now)])
    more = timedelta(seconds=policy.lease)
    if pool.mass_loss is MassLoss.PROCEED and held_at + more <= now:
        lost += [_lose(lease) for lease in doubtful if lease.expires_at + more <= now]
    return Effects(cells=lost)


def mass_alert(pool: PoolSilence, now: datetime) -> RaiseAlert:
    """Return the alert about suppressed losses: extent, start, and instructions."""
    since = pool.silent_since or now
    then = (
        "They are declared lost one lease later, unless they send heartbeats again"
        if pool.mass_loss is MassLoss.PROCEED
        else "None is declared lost: if they will not return, confirm the loss"
        f" (POST /api/v1/pools/{pool.name}/confirm-loss), and their tasks run elsewhere. A cell"
        " that returns without its journal is declared lost, and then accepted as a new incarnation"
    )
    return RaiseAlert(
        MASS_LOSS,
        pool.name,
        f"{pool.silent} of the {pool.cells} cells of pool {pool.name} are silent, the first since"
        f" {since:%Y-%m-%d %H:%M:%S} UTC: probably a network fault. {then}",
    )


def _is_mass(pool: PoolSilence) -> bool:
    return pool.silent >= _MASS_CELLS and 2 * pool.silent > pool.cells


def _is_over(lease: LeaseFacts, now: datetime, policy: Policy) -> bool:
    return (
        lease.state in _LIVING
        and lease.expires_at <= now
        and lease.silent_ticks >= policy.silent_ticks
    )


def _is_confirmed(lease: LeaseFacts, pool: PoolSilence, now: datetime) -> bool:
    at = pool.confirmed_at
    return at is not None and lease.last_message_at < at <= now


def _lose(lease: LeaseFacts) -> ChangeCell:
    since = f"silent since {lease.last_message_at.isoformat(timespec='seconds')}"
    # Unconfirmed stops and failures do not count for the next incarnation.
    cleared = clear_suspicions(lease.name)
    if lease.has_left:
        reason = f"shut down in order, {since}"
        return ChangeCell(lease.cell_id, _LIVING, CellState.LOST, reason, cleared=cleared)
    why = ": another incarnation of it is there, by which it is replaced"
    alert = RaiseAlert(
        LOST, lease.name, f"cell {lease.name} is lost{why if lease.is_replaced else ''}"
    )
    return ChangeCell(lease.cell_id, _LIVING, CellState.LOST, since, alert=alert, cleared=cleared)


def decide_lost_attempt(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Release the attempt on a lost cell, and requeue its task, charged to preemption.

    An exclusive attempt is released only when its guard must have ended it, despite clock drift. A
    strict one is released only when its cell or an operator confirms the end.
    """
    attempt = facts.attempt
    assert attempt is not None
    if facts.exclusive is Exclusive.NO or _is_releasable(attempt, now):
        if attempt.state in TERMINAL:
            return release_task(facts, ReleaseKind.CELL_LOST, Reason.CELL_LOST, now=now)
        cause = ChangeCause(Reason.CELL_LOST, release=ReleaseKind.CELL_LOST)
        return change_task(facts, Event.CELL_LOST, cause, now=now)
    releasable_at = attempt.releasable_at
    if releasable_at is None and facts.exclusive is Exclusive.LEASE:
        # Counted from now: the lease expired before the cell was declared lost.
        releasable_at = now + timedelta(seconds=EXCLUSIVE_MARGIN_SECONDS)
    if attempt.state in TERMINAL:
        change = keep_task(facts, now=now)
    else:
        change = change_task(facts, Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), now=now)
    assert change.attempt is not None
    return replace(change, attempt=replace(change.attempt, releasable_at=releasable_at))


def held_alert(uid: UUID, task_id: int) -> RaiseAlert:
    """Return the alert about an ended strictly exclusive attempt on a lost cell."""
    return RaiseAlert(
        HELD,
        f"attempt {uid}",
        f"task {task_id} is held: its strictly exclusive attempt was on a cell that is"
        " lost; make sure that its container is gone, then release the attempt",
    )


def is_lost_attempt_due(facts: TaskFacts, now: datetime) -> bool:
    """Return whether an attempt on a lost cell needs a change now."""
    attempt = facts.attempt
    if attempt is None or attempt.released_at is not None:
        return False
    if facts.exclusive is Exclusive.NO or attempt.state not in TERMINAL:
        return True
    if facts.exclusive is Exclusive.STRICT:
        return False
    return attempt.releasable_at is None or _is_releasable(attempt, now)


def _is_releasable(attempt: AttemptFacts, now: datetime) -> bool:
    return attempt.releasable_at is not None and attempt.releasable_at <= now
