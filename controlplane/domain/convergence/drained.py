"""Drain deadline: evict the attempts that remain on a cell, without charge."""

from datetime import datetime

from controlplane.domain.convergence.task_rule import TaskRule, unreleased
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import ACTIVE, Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event


def decide_drained(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Evict an attempt that remains after the drain deadline, without charge."""
    return change_task(facts, Event.DRAINED, ChangeCause(Reason.DRAINED), now=now)


def _is_evictable(facts: TaskFacts, now: datetime) -> bool:
    attempt = unreleased(facts)
    # Tasks that run at most once are not evicted.
    return attempt is not None and attempt.state in ACTIVE and not facts.at_most_once


RULE = TaskRule("drained", decide_drained, _is_evictable)
