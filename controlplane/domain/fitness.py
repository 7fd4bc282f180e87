"""What the heartbeats of a cell change about whether it gets work."""

from dataclasses import replace
from datetime import datetime

from controlplane.domain.convergence.stuck_stops import tell_overdue
from controlplane.domain.effects import ChangeCell
from controlplane.domain.states import CellState, Quarantine

_QUARANTINED = frozenset({CellState.QUARANTINED})


def decide_fitness(
    *,
    cell_id: int,
    state: CellState,
    ordered: CellState,
    cause: str,
    until: datetime | None,
    unfit: str,
    is_estranged: bool,
) -> ChangeCell | None:
    """Who says that it takes no work (`unfit`: why) is left alone until it says that it does.

    So is who came with what it must not have, until it has no such thing any more
    (`is_estranged`). `cause`, `until`: of the quarantine it is in; failures, which are forgotten
    at a time, are not before it because of strangers that came and went.
    """
    if state is CellState.READY and unfit:
        ready = frozenset({CellState.READY})
        return ChangeCell(cell_id, ready, CellState.QUARANTINED, unfit, cause=Quarantine.UNFIT)
    if state is not CellState.QUARANTINED or unfit:
        return None
    if cause == Quarantine.UNFIT:
        why = "it says that it takes work again"
        return ChangeCell(cell_id, _QUARANTINED, ordered, why, cause_before=Quarantine.UNFIT)
    if cause != Quarantine.STRANGERS or is_estranged:
        return None
    why = "what it must not have is gone"
    lifted = ChangeCell(cell_id, _QUARANTINED, ordered, why, cause_before=Quarantine.STRANGERS)
    if until is None:
        return lifted
    why = f"{why}, but whatever was sent there failed before"
    return replace(
        lifted, state=CellState.QUARANTINED, reason=why, cause=Quarantine.FAILURES, until=until
    )


def keep_for_stops(change: ChangeCell, overdue: int) -> ChangeCell:
    """Instead of `change`, the end of a quarantine: it goes on, since stops are `overdue`."""
    return replace(
        change,
        state=CellState.QUARANTINED,
        reason=tell_overdue(overdue),
        cause=Quarantine.STOPS,
    )
