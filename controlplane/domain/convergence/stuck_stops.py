"""Rule 6: a cell that does not confirm a stop is quarantined, with an alert, until it does."""

from collections.abc import Iterable

from controlplane.domain.effects import ChangeCell, Effects, RaiseAlert
from controlplane.domain.states import CellState

UNCONFIRMED = "stop_unconfirmed"
"""The kind of the alert."""

_SUSPECT = frozenset({CellState.READY})
_SUSPECTED = frozenset({CellState.QUARANTINED})


def decide_stuck_stops(stuck: Iterable[tuple[int, str, int]]) -> Effects:
    """`stuck`: cell id, cell name and how many of its stops are overdue."""
    cells, alerts = [], []
    for cell_id, name, count in stuck:
        reason = "1 stop is not confirmed" if count == 1 else f"{count} stops are not confirmed"
        cells.append(ChangeCell(cell_id, _SUSPECT, CellState.QUARANTINED, reason))
        alerts.append(RaiseAlert(UNCONFIRMED, name, f"cell {name}: {reason}"))
    return Effects(cells=cells, alerts=alerts)


def decide_cleared(cell_ids: Iterable[int]) -> list[ChangeCell]:
    """The cells have confirmed what was overdue: they take work again."""
    reason = "its stops are confirmed"
    return [ChangeCell(cell_id, _SUSPECTED, CellState.READY, reason) for cell_id in cell_ids]
