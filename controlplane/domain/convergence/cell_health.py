"""Rule 6: quarantine unreliable cells, with an alert.

A cell is unreliable while it does not confirm a stop, and for some minutes after all recent
attempts on it failed. After that, the ordered state is restored. A quarantine of any cause lasts
while a stop is overdue.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.effects import ChangeCell, Effects, RaiseAlert
from controlplane.domain.state.states import (
    ORDERED_STATES,
    TIMED_QUARANTINES,
    CellState,
    Quarantine,
)

UNCONFIRMED = "stop_unconfirmed"
FAILING = "cell_failing"
SUSPICIONS = (UNCONFIRMED, FAILING)
"""Kinds of alerts that are open only while their cell is QUARANTINED."""

_SUSPECT = frozenset(ORDERED_STATES)
_SUSPECTED = frozenset({CellState.QUARANTINED})


@dataclass(frozen=True, slots=True)
class StuckCell:
    """A cell with overdue `stops`, its state, and its quarantine (`why`, `until`)."""

    cell_id: int
    name: str
    stops: int
    state: CellState
    why: str = ""
    cause: Quarantine | None = None
    until: datetime | None = None


def decide_stuck_stops(stuck: Iterable[StuckCell], *, now: datetime) -> Effects:
    """Quarantine each cell with overdue stops and raise its alert.

    A cell that is QUARANTINED for another cause keeps that cause while it holds; an expired
    quarantine for failures does not count.
    """
    cells, alerts = [], []
    for cell in stuck:
        reason = tell_overdue(cell.stops)
        change = ChangeCell(
            cell.cell_id, _SUSPECT, CellState.QUARANTINED, reason, cause=Quarantine.STOPS
        )
        if cell.state is CellState.QUARANTINED:
            change = replace(change, states=_SUSPECTED, cause_before=cell.cause)
            is_timed = cell.cause in TIMED_QUARANTINES
            if is_timed and cell.until is not None and cell.until <= now:
                is_forgotten = cell.cause is Quarantine.FAILURES
                change = replace(change, trusted_at=now if is_forgotten else None)
            else:
                change = replace(change, reason=cell.why, cause=cell.cause, until=cell.until)
        cells.append(change)
        alerts.append(RaiseAlert(UNCONFIRMED, cell.name, f"cell {cell.name}: {reason}"))
    return Effects(cells=cells, alerts=alerts)


def tell_overdue(count: int) -> str:
    """Return a text with the number of overdue stops."""
    return "1 stop is not confirmed" if count == 1 else f"{count} stops are not confirmed"


def decide_failing(failing: Iterable[tuple[int, str]], *, now: datetime, policy: Policy) -> Effects:
    """Quarantine `failing` cells (id and name), on which all recent attempts had system failures.

    The failures are of several jobs and images; else the image or its registry may be the cause.
    """
    cells, alerts = [], []
    until = now + timedelta(seconds=policy.quarantine)
    reason = f"the last {policy.failures_in_a_row} attempts on it were system failures"
    for cell_id, name in failing:
        change = ChangeCell(
            cell_id,
            frozenset({CellState.READY}),
            CellState.QUARANTINED,
            reason,
            cause=Quarantine.FAILURES,
            until=until,
        )
        cells.append(change)
        alerts.append(RaiseAlert(FAILING, name, f"cell {name}: {reason}"))
    return Effects(cells=cells, alerts=alerts)


@dataclass(frozen=True, slots=True)
class ClearedCell:
    """A cell that may leave quarantine, or (`stays`) only lose its alert for overdue stops."""

    cell_id: int
    name: str
    cause: Quarantine | None
    ordered: CellState
    stays: bool = False


def decide_cleared(cells: Iterable[ClearedCell], *, now: datetime) -> list[ChangeCell]:
    """Restore the ordered state of cells with confirmed stops or an expired quarantine.

    Cells that are QUARANTINED for another cause stay so.
    """
    return [
        ChangeCell(
            cell.cell_id,
            _SUSPECTED,
            cell.ordered,
            "its quarantine has ended"
            if cell.cause in TIMED_QUARANTINES
            else "its stops are confirmed",
            trusted_at=now if cell.cause is Quarantine.FAILURES else None,
            cause_before=cell.cause,
        )
        for cell in cells
        if not cell.stays
    ]
