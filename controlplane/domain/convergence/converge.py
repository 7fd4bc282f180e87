"""The rules of convergence, in order; the order is the specification.

Each rule that ends a task decides about one at a time, on facts read again under the lock of its
job. Rules 1 to 6 wait while the control plane itself was
deaf: reports that waited on cells must arrive first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence import overdue
from controlplane.domain.convergence.lost_cells import decide_lost_attempt, is_lost_attempt_due
from controlplane.domain.effects import ChangeTask
from controlplane.domain.snapshots import AttemptFacts, TaskFacts
from controlplane.domain.states import ACTIVE


class Decide(Protocol):
    """Decides about one task."""

    def __call__(self, facts: TaskFacts, *, now: datetime) -> ChangeTask:
        """The change."""


@dataclass(frozen=True, slots=True)
class TaskRule:
    """One rule: `holds` says whether it still applies, `decide` what follows.

    `is_of_drain`: it applies as long as the cell of the attempt is being drained, too.
    """

    name: str
    decide: Decide
    holds: Callable[[TaskFacts, datetime], bool]
    is_of_drain: bool = False


def _unreleased(facts: TaskFacts) -> AttemptFacts | None:
    attempt = facts.attempt
    return attempt if attempt is not None and attempt.released_at is None else None


def _is_unanswered(facts: TaskFacts, now: datetime) -> bool:
    attempt = _unreleased(facts)
    if attempt is None or facts.at_most_once:
        return False  # an order that must not run twice waits for its cell's word, or its loss
    return attempt.state is S.ASSIGNED and attempt.start_before <= now


def _is_building(facts: TaskFacts, now: datetime) -> bool:
    attempt = _unreleased(facts)
    return attempt is not None and attempt.state is S.BUILDING


def _is_running(facts: TaskFacts, now: datetime) -> bool:
    attempt = _unreleased(facts)
    return attempt is not None and attempt.state is S.RUNNING


def _is_evictable(facts: TaskFacts, now: datetime) -> bool:
    attempt = _unreleased(facts)
    # What must not run twice leaves by finishing, however long that takes.
    return attempt is not None and attempt.state in ACTIVE and not facts.at_most_once


def _is_pending(facts: TaskFacts, now: datetime) -> bool:
    return facts.state is S.PENDING


TASK_RULES: tuple[TaskRule, ...] = (
    TaskRule("attempts_of_lost_cells", decide_lost_attempt, is_lost_attempt_due),
    TaskRule("unanswered", overdue.decide_unanswered, _is_unanswered),
    TaskRule("stuck_builds", overdue.decide_stuck_build, _is_building),
    TaskRule("overruns", overdue.decide_overrun, _is_running),
    TaskRule("drained", overdue.decide_drained, _is_evictable, is_of_drain=True),
    TaskRule("unplaced", overdue.decide_unplaced, _is_pending),
)
"""Rules 1 (second half) to 5, and with them the end of drains."""
