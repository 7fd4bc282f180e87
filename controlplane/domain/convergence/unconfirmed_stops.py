"""Rule 6, first half: force a stop that the cell does not confirm, before it is quarantined."""

from dataclasses import replace
from datetime import datetime

from controlplane.domain.convergence.task_rule import TaskRule, unreleased
from controlplane.domain.state.effects import ChangeTask, Step
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import TERMINAL, Reason
from controlplane.domain.state.task_changes import keep_task


def decide_unconfirmed_stop(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Force the stop: the cell must kill the container at once, repeated with each Sync."""
    change = keep_task(facts, now=now)
    assert change.attempt is not None
    step = Step(facts.state, facts.state, change.attempt.state_to, Reason.STOP_FORCED, now)
    return replace(change, steps=(step,), attempt=replace(change.attempt, stop_force=True))


def _is_unforced(facts: TaskFacts, now: datetime) -> bool:
    attempt = unreleased(facts)
    return attempt is not None and attempt.state in TERMINAL and not attempt.is_stop_forced


RULE = TaskRule("unconfirmed_stops", decide_unconfirmed_stop, _is_unforced)
