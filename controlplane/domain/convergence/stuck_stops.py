"""Rule 6: a cell that does not confirm a stop is quarantined, with an alert, until it does or an
operator acts.
"""

from collections.abc import Iterable

from controlplane.domain.effects import ChangeCell, Effects, RaiseAlert
from controlplane.domain.states import CellState

_SUSPECT = frozenset({CellState.READY})


def decide_stuck_stops(stuck: Iterable[tuple[int, str, int]]) -> Effects:
    """`stuck`: cell id, cell name and how many of its stops are overdue."""
    cells, alerts = [], []
    for cell_id, name, count in stuck:
        reason = f"{count} stops are not confirmed"
        cells.append(ChangeCell(cell_id, _SUSPECT, CellState.QUARANTINED, reason))
        alerts.append(RaiseAlert("stop_unconfirmed", name, f"cell {name}: {reason}"))
    return Effects(cells=cells, alerts=alerts)
