"""Rules 2 to 5: what has waited for longer than its state allows is ended, and whoever holds it is
told to stop.
"""

from datetime import datetime

from controlplane.domain.changes import Cause, change_task
from controlplane.domain.effects import ChangeTask
from controlplane.domain.snapshots import TaskFacts
from controlplane.domain.states import Reason
from controlplane.domain.transitions import Event


def decide_unanswered(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 2: ASSIGNED past `start_before` without an answer. Unreleased: the order may still
    arrive.
    """
    return change_task(facts, Event.START_EXPIRED, Cause(Reason.START_EXPIRED), now=now)


def decide_stuck_build(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 3: BUILDING longer than the pool's pull or create timeout: a system failure."""
    return change_task(facts, Event.SYSTEM_FAILED, Cause(Reason.BUILD_TIMEOUT), now=now)


def decide_overrun(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 4: RUNNING past its timeout and the grace in which its cell should have acted."""
    return change_task(facts, Event.KILLED, Cause(Reason.TIMEOUT), now=now)


def decide_unplaced(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 5: PENDING past its scheduling deadline, and looked at since (Iris: UNSCHEDULABLE)."""
    return change_task(facts, Event.DEADLINE_PASSED, Cause(Reason.SCHEDULING_DEADLINE), now=now)
