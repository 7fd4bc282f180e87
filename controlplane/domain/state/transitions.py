"""The transition table: every legal change of a task and its attempt.

An event without a row in `TRANSITIONS` is rejected (`IllegalTransition`). `docs/states.md` is
generated from the table; database constraints also enforce its invariants.

Sources: Iris "Task States Reference" for states, numbers and the two budgets; Flyte for consecutive
system failures (default 3); Diego for attempts that are refused or expire before they start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from controlplane.contract.records import record
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import IllegalTransition
from controlplane.domain.state.states import ACTIVE, RetryAction, RetryBudget

# Further consecutive refusals are charged to the system budget, which limits the requeueing.
FREE_REFUSALS = 4
# RUNNING time after which the counts of consecutive failures, refusals and crashes are reset.
HEALTHY_RUN_SECONDS = 60.0


class Event(StrEnum):
    """An event of a task or its attempt."""

    PLACED = "placed"
    CACHE_HIT = "cache_hit"
    DEADLINE_PASSED = "deadline_passed"
    REJECTED = "rejected"
    BUILDING = "building"
    STARTED = "started"
    EXITED_ZERO = "exited_zero"
    USER_FAILED = "user_failed"
    SYSTEM_FAILED = "system_failed"
    REFUSED = "refused"
    START_EXPIRED = "start_expired"
    CELL_LOST = "cell_lost"
    VANISHED = "vanished"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    KILLED = "killed"
    HEALTH_FAILED = "health_failed"
    GANG_BROKEN = "gang_broken"
    GANG_REQUEUED = "gang_requeued"


class BackoffKind(StrEnum):
    """Kinds of backoff of a requeued task; see `domain.state.backoff`."""

    NONE = "none"
    FAILURE = "failure"
    SYSTEM = "system"
    CRASH = "crash"
    RULE = "rule"


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """One row. The task becomes PENDING while `budget` lasts or if `requeue` is set, else `task`.

    `exhausts`: the rest of the budget plus 1 is charged, so the task is never requeued.
    `is_ruled`: the retry rules of the group apply.
    """

    task: S
    attempt: S | None = None
    budget: RetryBudget | None = None
    requeue: bool = False
    wait: BackoffKind = BackoffKind.NONE
    avoids_cell: bool = False
    prefers_cell: bool = False
    exhausts: bool = False
    is_ruled: bool = False


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """The retry limits of a task (Iris: failure 0, preemption 100; Flyte: system 3).

    `permanent`: permanent failures are also retried, within these limits.
    """

    failure: int = 0
    preemption: int = 100
    system: int = 3
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Counters:
    """The used budgets of a task: three totals, and the numbers of consecutive ends.

    `consecutive_crashes`: ends of a service after it was RUNNING, which no budget limits.
    """

    failure: int = 0
    preemption: int = 0
    system: int = 0
    system_row: int = 0
    refusal_row: int = 0
    consecutive_crashes: int = 0


@record
class TransitionResult:
    """The states of a task and its attempt after an event, and the charge to a budget."""

    task: S
    attempt: S | None
    charged: RetryBudget | None
    counters: Counters
    charge: int = 0
    wait: BackoffKind = BackoffKind.NONE
    avoids_cell: bool = False
    prefers_cell: bool = False


_BUILT = frozenset({S.BUILDING, S.RUNNING})

_ROWS: tuple[tuple[frozenset[S], Event, TransitionRule], ...] = (
    (frozenset({S.PENDING}), Event.PLACED, TransitionRule(S.ASSIGNED, S.ASSIGNED)),
    (frozenset({S.PENDING}), Event.CACHE_HIT, TransitionRule(S.SUCCEEDED)),
    (frozenset({S.PENDING}), Event.DEADLINE_PASSED, TransitionRule(S.UNSCHEDULABLE)),
    (frozenset({S.PENDING}), Event.REJECTED, TransitionRule(S.UNSCHEDULABLE)),
    (frozenset({S.ASSIGNED}), Event.BUILDING, TransitionRule(S.BUILDING, S.BUILDING)),
    (frozenset({S.ASSIGNED, S.BUILDING}), Event.STARTED, TransitionRule(S.RUNNING, S.RUNNING)),
    (ACTIVE, Event.EXITED_ZERO, TransitionRule(S.SUCCEEDED, S.SUCCEEDED)),
    # Prefers the cell, which has the image and inputs (Flyte: restarted in place).
    (
        ACTIVE,
        Event.USER_FAILED,
        TransitionRule(
            S.FAILED,
            S.FAILED,
            RetryBudget.FAILURE,
            wait=BackoffKind.FAILURE,
            prefers_cell=True,
            is_ruled=True,
        ),
    ),
    (
        ACTIVE,
        Event.SYSTEM_FAILED,
        TransitionRule(
            S.FAILED,
            S.FAILED,
            RetryBudget.SYSTEM,
            wait=BackoffKind.SYSTEM,
            avoids_cell=True,
            is_ruled=True,
        ),
    ),
    (
        frozenset({S.ASSIGNED}),
        Event.REFUSED,
        TransitionRule(
            S.FAILED, S.WORKER_FAILED, requeue=True, wait=BackoffKind.SYSTEM, avoids_cell=True
        ),
    ),
    (
        frozenset({S.ASSIGNED}),
        Event.START_EXPIRED,
        TransitionRule(
            S.FAILED, S.WORKER_FAILED, requeue=True, wait=BackoffKind.SYSTEM, avoids_cell=True
        ),
    ),
    (
        ACTIVE,
        Event.CELL_LOST,
        TransitionRule(S.WORKER_FAILED, S.WORKER_FAILED, RetryBudget.PREEMPTION),
    ),
    (
        ACTIVE,
        Event.VANISHED,
        TransitionRule(S.WORKER_FAILED, S.WORKER_FAILED, RetryBudget.PREEMPTION),
    ),
    (
        frozenset({S.ASSIGNED}),
        Event.PREEMPTED,
        TransitionRule(S.PREEMPTED, S.PREEMPTED, requeue=True),
    ),
    (_BUILT, Event.PREEMPTED, TransitionRule(S.PREEMPTED, S.PREEMPTED, RetryBudget.PREEMPTION)),
    (ACTIVE, Event.DRAINED, TransitionRule(S.PREEMPTED, S.PREEMPTED, requeue=True)),
    (frozenset({S.PENDING}), Event.KILLED, TransitionRule(S.KILLED)),
    (ACTIVE, Event.KILLED, TransitionRule(S.KILLED, S.KILLED)),
    # Also from ASSIGNED and BUILDING, if the RUNNING report was lost.
    (
        ACTIVE,
        Event.HEALTH_FAILED,
        TransitionRule(S.FAILED, S.FAILED, requeue=True, wait=BackoffKind.CRASH),
    ),
    (frozenset({S.PENDING}), Event.GANG_BROKEN, TransitionRule(S.WORKER_FAILED)),
    (
        ACTIVE,
        Event.GANG_BROKEN,
        TransitionRule(S.WORKER_FAILED, S.WORKER_FAILED, RetryBudget.PREEMPTION, exhausts=True),
    ),
    (ACTIVE, Event.GANG_REQUEUED, TransitionRule(S.WORKER_FAILED, S.WORKER_FAILED, requeue=True)),
)

TRANSITIONS: Mapping[tuple[S, Event], TransitionRule] = MappingProxyType(
    {(state, event): rule for states, event, rule in _ROWS for state in states}
)


def is_legal(state: S, event: Event) -> bool:
    """Return whether the table has a row for `event` in `state`."""
    return (state, event) in TRANSITIONS


def is_ruled(state: S, event: Event) -> bool:
    """Return whether retry rules apply to `event` in `state`."""
    rule = TRANSITIONS.get((state, event))
    return rule is not None and rule.is_ruled


def advance(
    state: S,
    event: Event,
    *,
    counters: Counters,
    limits: RetryLimits,
    ran_seconds: float = 0.0,
    is_final: bool = False,
    action: RetryAction | None = None,
) -> TransitionResult:
    """Return the result of `event` for a task in `state`, after `ran_seconds` of RUNNING.

    `is_final`: the task is not retried, even if its budgets allow it (at most once). `action`: of
    the retry rule that matches. Raise IllegalTransition.
    """
    try:
        rule = TRANSITIONS[state, event]
    except KeyError:
        text = f"event {event} is not allowed for a task in state {state.name}"
        raise IllegalTransition(text) from None
    action = action if rule.is_ruled else None
    counters = _count(counters, event, ran_seconds)
    budget, wait = _budget(rule, counters), rule.wait
    is_retried = action is RetryAction.RETRY and not is_final
    if is_retried and _pays_for_system(budget, counters, limits):
        budget, wait = RetryBudget.FAILURE, BackoffKind.RULE
    charge = 0
    if budget is None:
        may_requeue = rule.requeue
    else:
        left = _limit(limits, budget) - _used(counters, budget)
        charge = left + 1 if rule.exhausts else 1
        counters = _charge(counters, budget, charge)
        may_requeue = charge <= left
    requeued = may_requeue and not is_final and action is not RetryAction.FAIL
    return TransitionResult(
        task=S.PENDING if requeued else rule.task,
        attempt=rule.attempt,
        charged=budget,
        counters=counters,
        charge=charge,
        wait=wait if requeued else BackoffKind.NONE,
        avoids_cell=rule.avoids_cell and requeued,
        prefers_cell=rule.prefers_cell and requeued,
    )


def works_again(event: Event, ran_seconds: float) -> bool:
    """Return whether an end proves that the system works: the program ended or ran long enough."""
    return ran_seconds >= HEALTHY_RUN_SECONDS or event in (Event.EXITED_ZERO, Event.USER_FAILED)


_REFUSALS = frozenset({Event.REFUSED, Event.START_EXPIRED})


def _count(counters: Counters, event: Event, ran_seconds: float) -> Counters:
    if event in _REFUSALS:
        return replace(counters, refusal_row=counters.refusal_row + 1)
    is_healthy = ran_seconds >= HEALTHY_RUN_SECONDS
    if event is Event.HEALTH_FAILED:
        before = 0 if is_healthy else counters.consecutive_crashes
        counters = replace(counters, consecutive_crashes=before + 1)
    elif is_healthy:
        counters = replace(counters, consecutive_crashes=0)
    if not counters.system_row and not counters.refusal_row:
        return counters  # nothing to reset
    if works_again(event, ran_seconds):
        return replace(counters, system_row=0, refusal_row=0)
    if event in (Event.BUILDING, Event.STARTED):
        return replace(counters, refusal_row=0)
    return counters


def _budget(rule: TransitionRule, counters: Counters) -> RetryBudget | None:
    if rule.wait is BackoffKind.SYSTEM and rule.requeue and counters.refusal_row > FREE_REFUSALS:
        return RetryBudget.SYSTEM
    return rule.budget


def _pays_for_system(budget: RetryBudget | None, counters: Counters, limits: RetryLimits) -> bool:
    """Return whether only the failure budget allows another attempt after a system failure."""
    if budget is not RetryBudget.SYSTEM or counters.system_row < limits.system:
        return False
    return counters.failure < limits.failure


def _charge(counters: Counters, budget: RetryBudget, charge: int) -> Counters:
    match budget:
        case RetryBudget.FAILURE:
            return replace(counters, failure=counters.failure + charge)
        case RetryBudget.PREEMPTION:
            return replace(counters, preemption=counters.preemption + charge)
        case RetryBudget.SYSTEM:
            return replace(
                counters,
                system=counters.system + charge,
                system_row=counters.system_row + charge,
            )


def _used(counters: Counters, budget: RetryBudget) -> int:
    match budget:
        case RetryBudget.FAILURE:
            return counters.failure
        case RetryBudget.PREEMPTION:
            return counters.preemption
        case RetryBudget.SYSTEM:
            return counters.system_row


def _limit(limits: RetryLimits, budget: RetryBudget) -> int:
    match budget:
        case RetryBudget.FAILURE:
            return limits.failure
        case RetryBudget.PREEMPTION:
            return limits.preemption
        case RetryBudget.SYSTEM:
            return limits.system
