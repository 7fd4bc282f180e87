"""Rule 6: quarantine unreliable cells, with an alert.

A cell is unreliable while a stop is overdue, and for some minutes after all recent attempts on it
failed. Then its ordered state is restored. While a stop is overdue, no quarantine ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.effects import ChangeCell, ClearAlert, Effects, RaiseAlert
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

MAX_FAILURE_CHARS = 200

_SUSPECT = frozenset(ORDERED_STATES)
_SUSPECTED = frozenset({CellState.QUARANTINED})


@dataclass(frozen=True, slots=True)
class StuckCell:
    """A cell with overdue `stops`, its state, and its quarantine (`why`, `cause`, `until`)."""

    cell_id: int
    name: str
    stops: int
    state: CellState
    why: str = ""
    cause: Quarantine | None = None
    until: datetime | None = None


def clear_suspicions(name: str) -> tuple[ClearAlert, ...]:
    """Return the effects that clear the alerts about an unreliable cell."""
    return tuple(ClearAlert(kind, name) for kind in SUSPICIONS)


def decide_stuck_stops(stuck: Iterable[StuckCell], *, now: datetime) -> Effects:
    """Quarantine each cell with overdue stops and raise its alert.

    A cell that is QUARANTINED for another cause keeps that cause while it holds; an expired
    quarantine for failures does not count.
    """
    return Effects(cells=[_suspect(cell, now) for cell in stuck])


def _suspect(cell: StuckCell, now: datetime) -> ChangeCell:
    reason = describe_overdue(cell.stops)
    change = ChangeCell(
        cell.cell_id,
        _SUSPECT,
        CellState.QUARANTINED,
        reason,
        cause=Quarantine.STOPS,
        alert=RaiseAlert(UNCONFIRMED, cell.name, f"cell {cell.name}: {reason}"),
    )
    if cell.state is not CellState.QUARANTINED:
        return change
    change = replace(change, states=_SUSPECTED, cause_before=cell.cause)
    is_timed = cell.cause in TIMED_QUARANTINES
    if not is_timed or cell.until is None or cell.until > now:
        return replace(change, reason=cell.why, cause=cell.cause, until=cell.until)
    if cell.cause is not Quarantine.FAILURES:
        return change
    return replace(change, trusted_at=now, cleared=(ClearAlert(FAILING, cell.name),))


def describe_overdue(count: int) -> str:
    """Return the number of overdue stops as text."""
    return "1 stop is not confirmed" if count == 1 else f"{count} stops are not confirmed"


@dataclass(frozen=True, slots=True)
class FailingCell:
    """A cell on which all recent attempts had system failures, with the text of the newest one."""

    cell_id: int
    name: str
    newest: str


def describe_newest(reason: str, newest: str) -> str:
    """Return a reason with the text of the newest failure.

    The text is of a job, so that only readers of all projects may see it.
    """
    text = " ".join(newest.split())
    if len(text) > MAX_FAILURE_CHARS:
        text = text[: MAX_FAILURE_CHARS - 1] + "…"
    return f"{reason}; the newest: {text}" if text else reason


def decide_failing(failing: Iterable[FailingCell], *, now: datetime, policy: Policy) -> Effects:
    """Quarantine cells on which all recent attempts had system failures.

    The failures are of several jobs and images, so a single image or registry is not the cause.
    """
    until = now + timedelta(seconds=policy.quarantine)
    reason = f"the last {policy.failures_in_a_row} attempts on it were system failures"
    cells = [
        ChangeCell(
            cell.cell_id,
            frozenset({CellState.READY}),
            CellState.QUARANTINED,
            reason,
            cause=Quarantine.FAILURES,
            until=until,
            alert=RaiseAlert(
                FAILING, cell.name, f"cell {cell.name}: {describe_newest(reason, cell.newest)}"
            ),
        )
        for cell in failing
    ]
    return Effects(cells=cells)


@dataclass(frozen=True, slots=True)
class ClearedCell:
    """A cell that may leave quarantine, or with `stays` only its alert about overdue stops."""

    cell_id: int
    name: str
    cause: Quarantine | None
    ordered: CellState
    stays: bool = False


def decide_cleared(cells: Iterable[ClearedCell], *, now: datetime) -> Effects:
    """Restore the ordered state of cells with confirmed stops or an expired quarantine.

    Cells that are QUARANTINED for another cause (`stays`) keep it; their alert is cleared.
    """
    changes, cleared = [], []
    for cell in cells:
        if cell.stays:
            cleared.append(ClearAlert(UNCONFIRMED, cell.name))
            continue
        is_timed = cell.cause in TIMED_QUARANTINES
        change = ChangeCell(
            cell.cell_id,
            _SUSPECTED,
            cell.ordered,
            "its quarantine has ended" if is_timed else "its stops are confirmed",
            trusted_at=now if cell.cause is Quarantine.FAILURES else None,
            cause_before=cell.cause,
            cleared=clear_suspicions(cell.name),
        )
        changes.append(change)
    return Effects(cells=changes, cleared=cleared)
