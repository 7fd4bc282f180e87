"""Rules 1, 6 and 11: lost cells, unreliable cells, reliable ones again, overdue key rotations."""

from collections.abc import Mapping
from datetime import datetime

from controlplane.commands.cells.image_failures import hold_images
from controlplane.commands.cells.rotation import end_overdue_rotations
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.wire.queues import cell_queue
from controlplane.domain.convergence.cell_health import (
    decide_cleared,
    decide_failing,
    decide_stuck_stops,
)
from controlplane.domain.convergence.lost_cells import HELD, decide_lost, held_alert
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.effects import ClearAlert, Effects
from controlplane.outbox import transport
from controlplane.queries.convergence.cell_health import (
    find_cleared_cells,
    find_failing_cells,
    find_stuck_stops,
)
from controlplane.queries.convergence.lost_cells import (
    find_freed_attempts,
    find_held_attempts,
    list_pool_silences,
    list_silent_leases,
    lock_silent_cells,
)
from controlplane.queries.sql import execute


def count_silence(*, now: datetime, silent_since: datetime) -> int:
    """Count this tick for the cells without a message since `silent_since`; return how many.

    Set a message time in the future, left from before the clock was set back, to `now`: otherwise
    a dead cell would not be LOST until the clock reaches that time. Such cells are returned, too.
    """
    return execute(
        """
        WITH found AS MATERIALIZED (
            SELECT l.cell_id, l.last_message_at > %(ahead)s AS is_ahead
            FROM controlplane_celllease l JOIN controlplane_cell c ON c.id = l.cell_id
            WHERE l.last_message_at > %(ahead)s
               OR (l.last_message_at <= %(since)s AND c.state <> 'LOST')
            ORDER BY l.cell_id FOR NO KEY UPDATE OF l
        )
        UPDATE controlplane_celllease l SET
            silent_ticks = CASE WHEN is_ahead THEN l.silent_ticks ELSE l.silent_ticks + 1 END,
            last_message_at = CASE WHEN is_ahead THEN %(now)s ELSE l.last_message_at END,
            expires_at = CASE WHEN is_ahead THEN %(now)s + (l.expires_at - l.last_message_at)
                              ELSE l.expires_at END
        FROM found WHERE l.cell_id = found.cell_id
        """,
        # The margin excludes heartbeats received since the tick began.
        {"now": now, "ahead": now + (now - silent_since), "since": silent_since},
    )


def lose_silent_cells(context: RuleContext) -> Mapping[str, int]:
    """Declare cells LOST after a proven silence, unless too many cells of a pool are silent.

    The single transaction excludes messages of these cells and confirmations of a loss, so that an
    alert and its suppressed loss exist together.
    """

    def work() -> tuple[Effects, list[str]]:
        lock_silent_cells(context.now, context.policy)
        leases = list_silent_leases(context.now, context.policy)
        pools = list_pool_silences({lease.pool_id for lease in leases}, context.now)
        effects = decide_lost(leases, pools, now=context.now, policy=context.policy)
        moved = apply(effects, now=context.now).moved
        lost = [lease for lease in leases if lease.cell_id in moved]
        return effects, [cell_queue(lease.name, lease.incarnation) for lease in lost]

    effects, queues = run_in_transaction(work)
    for queue in queues:  # each belongs to a lost incarnation
        transport.drop(queue)
    held = sum(pool.held_at is not None for pool in effects.pools)
    over = len(effects.pools) - held
    return {"cells_lost": len(queues), "losses_held": held, "losses_over": over}


def watch_held_attempts(context: RuleContext) -> Mapping[str, int]:
    """Raise alerts about attempts that only their lost cell or an operator can release."""
    freed = find_freed_attempts() if "freed_attempts" in context.due else []
    held = find_held_attempts() if "held_attempts" in context.due else []
    effects = Effects(
        alerts=[held_alert(uid, task_id) for uid, task_id in held],
        cleared=[ClearAlert(HELD, subject) for subject in freed],
    )
    apply(effects, now=context.now)
    return {"held": len(held), "freed": len(freed)}


def judge_cells(context: RuleContext) -> Mapping[str, int]:
    """Quarantine cells that do not confirm stops or that fail all tasks; release the others."""
    counts, now, policy = {}, context.now, context.policy
    if "stuck_stops" in context.due:
        counts["cells_suspected"] = suspect_cells(now=now, policy=policy)
    if "failing_cells" in context.due:
        failing = find_failing_cells(now, policy)
        counts["cells_avoided"] = _move(decide_failing(failing, now=now, policy=policy), now)
    if "cleared_cells" in context.due:
        counts["cells_cleared"] = clear_cells(now=now, policy=policy)
    return counts


def suspect_cells(*, now: datetime, policy: Policy) -> int:
    """Quarantine the cells that do not confirm stops, or raise the alert again; return how many."""
    return _move(decide_stuck_stops(find_stuck_stops(now, policy), now=now), now)


def clear_cells(*, now: datetime, policy: Policy) -> int:
    """End the quarantine of cells; return how many.

    For cells with another cause of quarantine, only the alert about their stops is cleared.
    """
    return _move(decide_cleared(find_cleared_cells(now, policy), now=now), now)


def _move(effects: Effects, now: datetime) -> int:
    return len(run_in_transaction(lambda: apply(effects, now=now)).moved)


def hold_images_back(context: RuleContext) -> Mapping[str, int]:
    """Delay the tasks of images that cells could not pull, or resume them."""
    return {"held_by_images": hold_images(now=context.now)}


def end_rotations(context: RuleContext) -> Mapping[str, int]:
    """Discard the next keys of cells that did not use them in time."""
    return {"rotations_ended": end_overdue_rotations(now=context.now)}
