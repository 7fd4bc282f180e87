"""Rules 7 and 8: end unsatisfiable tasks, and the open tasks of ending jobs and gangs."""

from dataclasses import replace
from datetime import datetime, timedelta

from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import REASONS, Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event

# A reservation lasts this long after the stop of the attempt should have completed.
NOMINATION_SECONDS = 30.0


def decide_hopeless(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 7: end a task after its dependency failed. This does not make the job KILLED."""
    cause = ChangeCause(Reason.DEPENDENCY_FAILED, by_dependency=True)
    return change_task(facts, Event.KILLED, cause, now=now)


def decide_ended(
    facts: TaskFacts, *, reason: Reason, message: str, force: bool, now: datetime
) -> ChangeTask:
    """Rule 8: end the open tasks of an ending job (Iris: siblings in a gang WORKER_FAILED)."""
    shown = Reason.JOB_ENDED if reason is Reason.TASKS_DECIDED else reason
    cause = ChangeCause(shown, message, force=force, failure_reason=REASONS[shown])
    event = Event.GANG_BROKEN if reason is Reason.GANG_SIBLING_FAILED else Event.KILLED
    return change_task(facts, event, cause, now=now)


def decide_gang_requeue(facts: TaskFacts, *, stop_seconds: float, now: datetime) -> ChangeTask:
    """Rule 8: requeue the task of a gang that fell below a minimum, without charge.

    Its capacity is reserved for `stop_seconds`, so that no other task takes it.
    """
    change = change_task(facts, Event.GANG_REQUEUED, ChangeCause(Reason.GANG_REQUEUED), now=now)
    if facts.attempt is None:
        return change
    seconds = stop_seconds + NOMINATION_SECONDS
    return replace(
        change,
        nominated_cell_id=facts.attempt.cell_id,
        nominated_until=now + timedelta(seconds=seconds),
    )
