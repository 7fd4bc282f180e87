"""Rules 7 and 8: end unsatisfiable tasks, and the open tasks of ending jobs and gangs."""

from dataclasses import replace
from datetime import datetime, timedelta

from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import REASONS, Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event

# Duration of a reservation after the expected end of the stop.
NOMINATION_SECONDS = 30.0


def decide_hopeless(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Rule 7: end a task whose dependency failed, without making its job KILLED."""
    cause = ChangeCause(Reason.DEPENDENCY_FAILED, by_dependency=True)
    return change_task(facts, Event.KILLED, cause, now=now)


def decide_ended(
    facts: TaskFacts, *, reason: Reason, message: str, force: bool, now: datetime
) -> ChangeTask:
    """Rule 8: end an open task of an ending job; siblings in a gang end WORKER_FAILED (Iris)."""
    shown = Reason.JOB_ENDED if reason is Reason.TASKS_DECIDED else reason
    cause = ChangeCause(shown, message, force=force, failure_reason=REASONS[shown])
    event = Event.GANG_BROKEN if reason is Reason.GANG_SIBLING_FAILED else Event.KILLED
    return change_task(facts, event, cause, now=now)


def decide_gang_requeue(facts: TaskFacts, *, stop_seconds: float, now: datetime) -> ChangeTask:
    """Rule 8: requeue a task of a gang that fell below a minimum, without charge.

    Its capacity stays reserved for `stop_seconds`, in which its container stops, and a margin.
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
