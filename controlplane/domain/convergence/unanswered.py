"""Rule 2: withdraw an order that the cell did not answer before `start_before`."""

from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.task_rule import TaskRule, unreleased
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event


def decide_unanswered(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """End an ASSIGNED attempt past `start_before`, unreleased: the order may still arrive."""
    return change_task(facts, Event.START_EXPIRED, ChangeCause(Reason.START_EXPIRED), now=now)


def _is_unanswered(facts: TaskFacts, now: datetime) -> bool:
    attempt = unreleased(facts)
    if attempt is None or facts.at_most_once:
        return False  # waits for the report or the loss of its cell
    return attempt.state is S.ASSIGNED and attempt.start_before <= now


RULE = TaskRule("unanswered", decide_unanswered, _is_unanswered)
