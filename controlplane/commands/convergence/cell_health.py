"""Rule 6: cells that cannot be relied upon are put aside, and trusted again."""

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from controlplane.commands.convergence.rule import RuleContext
from controlplane.commands.state.apply import change_cells, clear_alerts, raise_alerts
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.convergence.cell_health import (
    FAILING,
    SUSPICIONS,
    UNCONFIRMED,
    decide_cleared,
    decide_failing,
    decide_stuck_stops,
)
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.effects import Effects
from controlplane.outbox import wakes
from controlplane.queries.convergence.cell_health import (
    find_cleared_cells,
    find_failing_cells,
    find_stuck_stops,
)


def judge_cells(look: RuleContext) -> Mapping[str, int]:
    """Quarantine cells that do not confirm stops or fail everything; release the others."""
    counts = {}
    if "stuck_stops" in look.due:
        counts["cells_suspected"] = suspect_cells(now=look.now, policy=look.policy)
    if "failing_cells" in look.due:
        counts["cells_avoided"] = avoid_failing_cells(now=look.now, policy=look.policy)
    if "cleared_cells" in look.due:
        counts["cells_cleared"] = clear_cells(now=look.now, policy=look.policy)
    return counts


def suspect_cells(*, now: datetime, policy: Policy) -> int:
    """Quarantine the cells that do not confirm stops, or raise the alert again; return how many."""
    stuck = find_stuck_stops(now, policy)
    return _quarantine(decide_stuck_stops(stuck, now=now), now=now)


def avoid_failing_cells(*, now: datetime, policy: Policy) -> int:
    """Quarantine the cells on which everything fails; how many."""
    failing = find_failing_cells(now, policy)
    return _quarantine(decide_failing(failing, now=now, policy=policy), now=now)


def clear_cells(*, now: datetime, policy: Policy) -> int:
    """End the quarantine of cells; return how many.

    For cells with another cause of quarantine, only the alert about their stops is cleared.
    """
    cells = {cell.cell_id: cell for cell in find_cleared_cells(now, policy)}

    def work() -> int:
        moved = change_cells(decide_cleared(cells.values(), now=now))
        clear_alerts(SUSPICIONS, [cells[cell_id].name for cell_id in moved], now=now)
        stay = [cell.name for cell in cells.values() if cell.stays]
        clear_alerts(UNCONFIRMED, stay, now=now)
        if moved:
            transaction.on_commit(wakes.wake_placement, robust=True)
        return len(moved)

    return run_in_transaction(work)


def _quarantine(effects: Effects, *, now: datetime) -> int:
    """Apply the cell changes and raise the alert of each cell that changed; return how many.

    `effects` holds one alert for each cell, in the same order.
    """

    def work() -> int:
        moved = change_cells(effects.cells)
        pairs = zip(effects.cells, effects.alerts, strict=True)
        told = [(cell, alert) for cell, alert in pairs if cell.cell_id in moved]
        raise_alerts([alert for _, alert in told], now=now)
        # What failed there is of the past, though it is kept for its stops.
        over = [alert.subject for cell, alert in told if cell.trusted_at is not None]
        clear_alerts(FAILING, over, now=now)
        return len(moved)

    return run_in_transaction(work)
