"""The convergence rules that decide on one task at a time.

The statement of the same name in `queries.convergence.late_tasks` finds the candidates of a rule
and checks the time limits of pools and groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Protocol

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.lost_cells import decide_lost_attempt, is_lost_attempt_due
from controlplane.domain.state.effects import ChangeTask, Step
from controlplane.domain.state.facts import AttemptFacts, TaskFacts
from controlplane.domain.state.states import ACTIVE, TERMINAL, Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task, keep_task
from controlplane.domain.state.transitions import Event


class Decide(Protocol):
    """Decision on one task."""

    def __call__(self, facts: TaskFacts, *, now: datetime) -> ChangeTask:
        """Return the change."""


@dataclass(frozen=True, slots=True)
class TaskRule:
    """One rule: `is_due` selects its tasks, `decide` returns the change.

    The table of owners shows the situation (`what`), the time limit (`longest`) and the result
    (`then`).
    """

    number: int
    name: str
    what: str
    longest: str
    then: str
    is_due: Callable[[TaskFacts, datetime], bool]
    decide: Decide


def _end(event: Event, reason: Reason) -> Decide:
    return partial(_decide_end, event, reason)


def _decide_end(event: Event, reason: Reason, facts: TaskFacts, *, now: datetime) -> ChangeTask:
    return change_task(facts, event, ChangeCause(reason), now=now)


def _decide_overrun(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    reason = Reason.LIFETIME_OVER if facts.timeout_is_lifetime else Reason.TIMEOUT
    return change_task(facts, Event.KILLED, ChangeCause(reason), now=now)


def _decide_unconfirmed_stop(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    change = keep_task(facts, now=now)
    assert change.attempt is not None
    step = Step(facts.state, facts.state, change.attempt.state_to, Reason.STOP_FORCED, now)
    return replace(change, steps=(step,), attempt=replace(change.attempt, stop_force=True))


def _unreleased(facts: TaskFacts) -> AttemptFacts | None:
    attempt = facts.attempt
    return attempt if attempt is not None and attempt.released_at is None else None


def _has_attempt(facts: TaskFacts, state: S) -> bool:
    attempt = _unreleased(facts)
    return attempt is not None and attempt.state is state


def _is_unanswered(facts: TaskFacts, now: datetime) -> bool:
    attempt = _unreleased(facts)
    if attempt is None or facts.at_most_once:
        return False  # ended by a report or the loss of its cell
    return attempt.state is S.ASSIGNED and attempt.start_before <= now


def _is_evictable(facts: TaskFacts, now: datetime) -> bool:
    attempt = _unreleased(facts)
    # A task that runs at most once is not evicted.
    return attempt is not None and attempt.state in ACTIVE and not facts.at_most_once


def _is_unforced(facts: TaskFacts, now: datetime) -> bool:
    attempt = _unreleased(facts)
    return attempt is not None and attempt.state in TERMINAL and not attempt.is_stop_forced


ATTEMPTS_OF_LOST_CELLS = TaskRule(
    1,
    "attempts_of_lost_cells",
    "an attempt on a lost cell",
    "checked in each tick; exclusive: until its guard has ended it, 10 s",
    "PENDING on the preemption budget, or WORKER_FAILED; released",
    is_lost_attempt_due,
    decide_lost_attempt,
)
# The attempt stays unreleased, because the order may still arrive.
UNANSWERED = TaskRule(
    2,
    "unanswered",
    "ASSIGNED",
    "`start_before`, 60 s",
    "PENDING, free, its attempt stopped; from the fifth consecutive time: the system budget",
    _is_unanswered,
    _end(Event.START_EXPIRED, Reason.START_EXPIRED),
)
STUCK_BUILDS = TaskRule(
    3,
    "stuck_builds",
    "BUILDING",
    "pulling: the pool's timeout to pull; creating and checking: to create, for checking with the"
    " start period of the service; preparing: no limit of its own; in all phases together their"
    " sum, from `start_before` on",
    "PENDING on the system budget, elsewhere, or FAILED",
    lambda facts, now: _has_attempt(facts, S.BUILDING),
    _end(Event.SYSTEM_FAILED, Reason.BUILD_TIMEOUT),
)
# The cell ends such an attempt itself; the rule applies 30 s later.
OVERRUNS = TaskRule(
    4,
    "overruns",
    "RUNNING, with a timeout",
    "`timeout_seconds` or `lifetime_seconds`, the shorter, and 30 s for the cell to end it",
    "KILLED",
    lambda facts, now: _has_attempt(facts, S.RUNNING),
    _decide_overrun,
)
DRAINED = TaskRule(
    5,
    "drained",
    "an attempt on a DRAINING cell",
    "checked in each tick: until the deadline of the drain, 1 h by default",
    "evicted, without charge",
    _is_evictable,
    _end(Event.DRAINED, Reason.DRAINED),
)
# As in Iris, the deadline is judged at the last pass that considered the task.
UNPLACED = TaskRule(
    5,
    "unplaced",
    "PENDING, never started, with a deadline",
    "`scheduling_timeout_seconds`, and a pass that has considered it since",
    "UNSCHEDULABLE",
    lambda facts, now: facts.state is S.PENDING,
    _end(Event.DEADLINE_PASSED, Reason.SCHEDULING_DEADLINE),
)
# Every Sync repeats the forced stop. Rule `stuck_stops` quarantines the cell later.
UNCONFIRMED_STOPS = TaskRule(
    6,
    "unconfirmed_stops",
    "its attempt ended, its container not confirmed gone",
    "stop grace + 30 s",
    "its stop is forced: the cell kills the container at once",
    _is_unforced,
    _decide_unconfirmed_stop,
)
