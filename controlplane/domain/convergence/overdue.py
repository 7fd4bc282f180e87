"""Rules 2 to 5, and drains: what lasts too long is ended, and whoever holds it stopped."""

from datetime import datetime

from controlplane.domain.changes import Cause, change_task
from controlplane.domain.effects import ChangeTask
from controlplane.domain.snapshots import TaskFacts
from controlplane.domain.states import Reason
from controlplane.domain.transitions import Event


def decide_unanswered(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 2: ASSIGNED past `start_before`, unanswered. Not released: the order may still come."""
    return change_task(facts, Event.START_EXPIRED, Cause(Reason.START_EXPIRED), now=now)


def decide_stuck_build(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 3: BUILDING longer than the pool's pull or create timeout: a system failure."""
    return change_task(facts, Event.SYSTEM_FAILED, Cause(Reason.BUILD_TIMEOUT), now=now)


def decide_overrun(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 4: RUNNING past its timeout and the grace in which its cell should have acted."""
    return change_task(facts, Event.KILLED, Cause(Reason.TIMEOUT), now=now)


def decide_drained(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Still on a cell whose drain has had its time: evicted, and not charged."""
    return change_task(facts, Event.DRAINED, Cause(Reason.DRAINED), now=now)


def decide_unplaced(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 5: PENDING past its scheduling deadline, and looked at since (Iris: UNSCHEDULABLE)."""
    return change_task(facts, Event.DEADLINE_PASSED, Cause(Reason.SCHEDULING_DEADLINE), now=now)
