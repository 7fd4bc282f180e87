"""Rule 1: a cell whose lease is over, and that we could have heard, is lost; its tasks move on.

Iris: worker death cascades to its tasks, charged to the preemption budget.
"""

from collections.abc import Iterable
from datetime import datetime

from controlplane.domain.changes import Cause, change_task, release_task
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.effects import ChangeCell, ChangeTask
from controlplane.domain.snapshots import LeaseFacts, TaskFacts
from controlplane.domain.states import TERMINAL, CellState, Reason, ReleaseKind
from controlplane.domain.transitions import Event

_LIVING = frozenset(CellState) - {CellState.LOST}


def decide_lost(leases: Iterable[LeaseFacts], *, now: datetime, policy: Policy) -> list[ChangeCell]:
    """The cells that are lost now. The caller has made sure that the control plane can hear."""
    return [
        ChangeCell(
            lease.cell_id,
            _LIVING,
            CellState.LOST,
            f"silent since {lease.last_heard_at.isoformat(timespec='seconds')}",
        )
        for lease in leases
        if lease.state in _LIVING
        and lease.expires_at <= now
        and lease.silent_ticks >= policy.silent_ticks
    ]


def decide_lost_attempt(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """The attempt on a lost cell is released; its task moves on at the preemption budget's cost."""
    assert facts.attempt is not None
    if facts.attempt.state in TERMINAL:
        return release_task(facts, ReleaseKind.CELL_LOST, Reason.CELL_LOST, now=now)
    cause = Cause(Reason.CELL_LOST, release=ReleaseKind.CELL_LOST)
    return change_task(facts, Event.CELL_LOST, cause, now=now)
