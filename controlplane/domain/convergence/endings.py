"""Rules 7 and 8: tasks that wait in vain, and the open tasks of ending jobs, are killed."""

from datetime import datetime

from controlplane.domain.changes import Cause, change_task
from controlplane.domain.effects import ChangeTask
from controlplane.domain.snapshots import TaskFacts
from controlplane.domain.states import REASONS, Reason
from controlplane.domain.transitions import Event


def decide_hopeless(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 7: a group that the task waits for failed it. Its job is not KILLED by that."""
    cause = Cause(Reason.DEPENDENCY_FAILED, by_dependency=True)
    return change_task(facts, Event.KILLED, cause, now=now)


def decide_ended(
    facts: TaskFacts, *, reason: Reason, message: str, force: bool, now: datetime
) -> ChangeTask:
    """Rule 8: the job ends, its open tasks with it."""
    told = Reason.JOB_ENDED if reason is Reason.TASKS_DECIDED else reason
    cause = Cause(told, message, force=force, failure_reason=REASONS[told])
    return change_task(facts, Event.KILLED, cause, now=now)
