"""Rule 1: a cell whose lease is over, and that we could have heard, is lost; its tasks move on.

Iris: worker death cascades to its tasks, charged to the preemption budget.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from controlplane.domain.changes import Cause, change_task, keep_task, release_task
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.effects import ChangeCell, ChangeTask, RaiseAlert
from controlplane.domain.snapshots import AttemptFacts, LeaseFacts, TaskFacts
from controlplane.domain.states import TERMINAL, CellState, Exclusive, Reason, ReleaseKind
from controlplane.domain.transitions import Event

# So much later than its lease is over by our count may an exclusive task run elsewhere.
EXCLUSIVE_MARGIN_SECONDS = 10.0
HELD = "exclusive_held"
"""The kind of the alert about an attempt that only its cell or an operator can release."""

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
    """The attempt on a lost cell is released; its task moves on at the preemption budget's cost.

    An exclusive one is not released before its guard must have ended it, by whatever clock; a
    strict one not at all: its cell must confirm it, or an operator.
    """
    attempt = facts.attempt
    assert attempt is not None
    if facts.exclusive is Exclusive.NO or _is_releasable(attempt, now):
        if attempt.state in TERMINAL:
            return release_task(facts, ReleaseKind.CELL_LOST, Reason.CELL_LOST, now=now)
        cause = Cause(Reason.CELL_LOST, release=ReleaseKind.CELL_LOST)
        return change_task(facts, Event.CELL_LOST, cause, now=now)
    releasable_at = attempt.releasable_at
    if releasable_at is None and facts.exclusive is Exclusive.LEASE:
        # The lease, as we count it, was over before the cell was lost; this comes on top.
        releasable_at = now + timedelta(seconds=EXCLUSIVE_MARGIN_SECONDS)
    if attempt.state in TERMINAL:
        change = keep_task(facts, now=now)
    else:
        change = change_task(facts, Event.CELL_LOST, Cause(Reason.CELL_LOST), now=now)
    assert change.attempt is not None
    return replace(change, attempt=replace(change.attempt, releasable_at=releasable_at))


def held_alert(uid: UUID, task_id: int) -> RaiseAlert:
    """About a strictly exclusive attempt that has ended, and that the loss of its cell leaves."""
    return RaiseAlert(
        HELD,
        f"attempt {uid}",
        f"task {task_id} is held: its strictly exclusive attempt was on a cell that is"
        " lost; make sure that its container is gone, then release the attempt",
    )


def is_lost_attempt_due(facts: TaskFacts, now: datetime) -> bool:
    """Whether there is something to do about an attempt on a lost cell."""
    attempt = facts.attempt
    if attempt is None or attempt.released_at is not None:
        return False
    if facts.exclusive is Exclusive.NO or attempt.state not in TERMINAL:
        return True
    if facts.exclusive is Exclusive.STRICT:
        return False
    return attempt.releasable_at is None or _is_releasable(attempt, now)


def _is_releasable(attempt: AttemptFacts, now: datetime) -> bool:
    return attempt.releasable_at is not None and attempt.releasable_at <= now
