"""Cell health: decide from messages of a cell whether it receives work."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from controlplane.domain.convergence.cell_health import clear_suspicions, describe_overdue
from controlplane.domain.state.effects import ChangeCell, Effects, RaiseAlert
from controlplane.domain.state.states import ORDERED_STATES, CellState, Quarantine

FLOOD = "cell_flooding"

_QUARANTINED = frozenset({CellState.QUARANTINED})


def decide_fitness(
    *,
    cell_id: int,
    name: str,
    state: CellState,
    ordered: CellState,
    cause: str,
    until: datetime | None,
    unfit: str,
    holds_unknown_attempts: bool,
) -> ChangeCell | None:
    """Decide the state of a cell from its heartbeat.

    A cell that reports itself unhealthy (`unfit`: its reason) is quarantined until it reports
    itself healthy; a cell with unknown attempts, until these are gone. `cause`, `until`: of the
    current quarantine. A quarantine for failures is not shortened.
    """
    if state is CellState.READY and unfit:
        ready = frozenset({CellState.READY})
        return ChangeCell(cell_id, ready, CellState.QUARANTINED, unfit, cause=Quarantine.UNFIT)
    if state is not CellState.QUARANTINED or unfit:
        return None
    if cause == Quarantine.UNFIT:
        reason = "it reported that it takes work again"
    elif cause == Quarantine.ORPHANS and not holds_unknown_attempts:
        reason = "its unknown attempts are gone"
    else:
        return None
    cause_before = Quarantine(cause)
    if cause_before is Quarantine.UNFIT or until is None:
        cleared = clear_suspicions(name)
        return ChangeCell(
            cell_id, _QUARANTINED, ordered, reason, cause_before=cause_before, cleared=cleared
        )
    return ChangeCell(
        cell_id,
        _QUARANTINED,
        CellState.QUARANTINED,
        f"{reason}, but all recent attempts on it failed",
        cause=Quarantine.FAILURES,
        until=until,
        cause_before=cause_before,
    )


def keep_for_stops(change: ChangeCell, overdue: int) -> ChangeCell:
    """Return `change` with a quarantine for `overdue` stops instead of its end."""
    return replace(
        change,
        state=CellState.QUARANTINED,
        reason=describe_overdue(overdue),
        cause=Quarantine.STOPS,
        cleared=(),
    )


def decide_flooding(reasons: Mapping[tuple[int, str], str], *, until: datetime) -> Effects:
    """Quarantine cells that send too much, with an alert for each.

    `reasons`: by cell id and name. An existing quarantine is extended if it is for flooding, and
    unchanged otherwise.
    """
    cells, alerts = [], []
    for (cell_id, name), reason in reasons.items():
        start = ChangeCell(
            cell_id,
            frozenset(ORDERED_STATES),
            CellState.QUARANTINED,
            reason,
            cause=Quarantine.FLOODING,
            until=until,
        )
        extension = replace(start, states=_QUARANTINED, cause_before=Quarantine.FLOODING)
        cells += [start, extension]
        alerts.append(RaiseAlert(FLOOD, name, f"cell {name}: {reason}"))
    return Effects(cells=cells, alerts=alerts)
