"""Rule 1: cells that are lost; and what only they or an operator can release."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from controlplane.commands.convergence.rule import RuleContext
from controlplane.commands.state.apply import change_cells, clear_alerts, raise_alerts
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.wire.queues import cell_queue
from controlplane.domain.convergence.cell_health import SUSPICIONS
from controlplane.domain.convergence.lost_cells import (
    HELD,
    LOST,
    MASS_LOSS,
    CellLosses,
    decide_lost,
    held_alert,
    mass_alert,
)
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.effects import RaiseAlert
from controlplane.domain.state.facts import LeaseFacts, PoolSilence
from controlplane.outbox import transport
from controlplane.queries.convergence.lost_cells import (
    find_freed_attempts,
    find_held_attempts,
    list_pool_silences,
    list_silent_leases,
    lock_silent_cells,
)
from controlplane.queries.sql import execute


def count_silence(*, now: datetime, silent_since: datetime) -> None:
    """Count this tick for the cells without a message since `silent_since`.

    A message from the future was received before the clock was put back: it counts from now on,
    otherwise a dead cell would live until the clock is there again.
    """
    execute(
        """
        WITH ahead AS MATERIALIZED (
            SELECT l.cell_id FROM controlplane_celllease l WHERE l.last_heard_at > %(ahead)s
            ORDER BY l.cell_id FOR NO KEY UPDATE
        )
        UPDATE controlplane_celllease l
        SET last_heard_at = %(now)s, expires_at = %(now)s + (l.expires_at - l.last_heard_at)
        FROM ahead WHERE l.cell_id = ahead.cell_id
        """,
        # Heartbeats that came since the tick began are none of these.
        {"now": now, "ahead": now + (now - silent_since)},
    )
    execute(
        """
        WITH silent AS MATERIALIZED (
            SELECT l.cell_id FROM controlplane_celllease l
            JOIN controlplane_cell c ON c.id = l.cell_id
            WHERE l.last_heard_at <= %s AND c.state <> 'LOST'
            ORDER BY l.cell_id FOR NO KEY UPDATE OF l
        )
        UPDATE controlplane_celllease l SET silent_ticks = l.silent_ticks + 1
        FROM silent WHERE l.cell_id = silent.cell_id
        """,
        [silent_since],
    )


def lose_silent_cells(look: RuleContext) -> Mapping[str, int]:
    """Declare LOST the cells whose silence is proven, unless too many of a pool are silent.

    One transaction, in which no message of these cells is applied and no operator confirms a loss:
    half of it would be an alert without a suppressed loss, or the reverse.
    """

    def work() -> tuple[CellLosses, list[LeaseFacts]]:
        lock_silent_cells(look.now, look.policy)
        leases = list_silent_leases(look.now, look.policy)
        pools = list_pool_silences({lease.pool_id for lease in leases}, look.now)
        losses = decide_lost(leases, pools, now=look.now, policy=look.policy)
        _hold(losses.held, now=look.now)
        _let_go(losses.back, now=look.now, policy=look.policy)
        moved = set(change_cells(losses.cells))
        lost = [lease for lease in leases if lease.cell_id in moved]
        _tell(lost, losses.alarms, now=look.now)
        return losses, lost

    losses, lost = run_in_transaction(work)
    # Their queues go with their incarnation.
    for lease in lost:
        transport.drop(cell_queue(lease.name, lease.incarnation))
    held, back = len(losses.held), len(losses.back)
    return {"cells_lost": len(lost), "losses_held": held, "losses_over": back}


def _tell(lost: Sequence[LeaseFacts], alarms: Collection[int], *, now: datetime) -> None:
    told = [lease for lease in lost if lease.cell_id in alarms]
    raise_alerts([RaiseAlert(LOST, lease.name, _loss(lease)) for lease in told], now=now)
    # Unconfirmed stops and failures of a lost cell do not count for its next incarnation.
    clear_alerts(SUSPICIONS, [lease.name for lease in lost], now=now)


def _loss(lease: LeaseFacts) -> str:
    why = ": another incarnation of it is there, by which it is replaced"
    return f"cell {lease.name} is lost{why if lease.is_replaced else ''}"


def _hold(pools: Sequence[PoolSilence], *, now: datetime) -> None:
    if pools:
        held = [pool.pool_id for pool in pools]
        execute("UPDATE controlplane_pool SET loss_held_at = %s WHERE id = ANY(%s)", [now, held])
        raise_alerts([mass_alert(pool, now) for pool in pools], now=now)


def _let_go(pools: Sequence[PoolSilence], *, now: datetime, policy: Policy) -> None:
    """Resume: enough cells send messages again; the others get one more lease."""
    if not pools:
        return
    back = [pool.pool_id for pool in pools]
    execute("UPDATE controlplane_pool SET loss_held_at = NULL WHERE id = ANY(%s)", [back])
    execute(
        """
        WITH silent AS MATERIALIZED (
            SELECT l.cell_id FROM controlplane_celllease l
            JOIN controlplane_cell c ON c.id = l.cell_id
            WHERE c.pool_id = ANY(%s) AND c.state <> 'LOST' AND l.silent_ticks > 0
            ORDER BY l.cell_id FOR NO KEY UPDATE OF l
        )
        UPDATE controlplane_celllease l SET expires_at = GREATEST(l.expires_at, %s)
        FROM silent WHERE l.cell_id = silent.cell_id
        """,
        [back, now + timedelta(seconds=policy.lease * policy.lease_factor)],
    )
    clear_alerts(MASS_LOSS, [pool.name for pool in pools], now=now)


def watch_held_attempts(look: RuleContext) -> Mapping[str, int]:
    """Raise alerts about attempts that only their lost cell or an operator can release."""
    freed = find_freed_attempts() if "freed_attempts" in look.due else []
    clear_alerts(HELD, freed, now=look.now)
    held = find_held_attempts() if "held_attempts" in look.due else []
    raise_alerts([held_alert(uid, task_id) for uid, task_id in held], now=look.now)
    return {"held": len(held), "freed": len(freed)}
