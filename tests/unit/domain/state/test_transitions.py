"""The transition table, row by row: what becomes of task, attempt and budgets."""

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import IllegalTransition
from controlplane.domain.state.states import ACTIVE, TERMINAL, RetryBudget
from controlplane.domain.state.transitions import (
    FREE_REFUSALS,
    HEALTHY_RUN_SECONDS,
    TRANSITIONS,
    BackoffKind,
    Counters,
    Event,
    RetryLimits,
    TransitionResult,
    advance,
)

NONE = Counters()


def after(
    state: S,
    event: Event,
    counters: Counters = NONE,
    limits: RetryLimits | None = None,
    ran_seconds: float = 0.0,
) -> TransitionResult:
    return advance(
        state, event, counters=counters, limits=limits or RetryLimits(), ran_seconds=ran_seconds
    )


def test_terminal_state_has_no_transitions() -> None:
    assert not [key for key in TRANSITIONS if key[0] in TERMINAL]


def test_an_event_without_a_row_is_refused() -> None:
    for state in S:
        for event in Event:
            if (state, event) not in TRANSITIONS:
                with pytest.raises(IllegalTransition, match=state.name):
                    after(state, event)


@pytest.mark.parametrize(
    ("state", "event", "task"),
    [
        (S.PENDING, Event.PLACED, S.ASSIGNED),
        (S.PENDING, Event.CACHE_HIT, S.SUCCEEDED),
        (S.PENDING, Event.DEADLINE_PASSED, S.UNSCHEDULABLE),
        (S.PENDING, Event.REJECTED, S.UNSCHEDULABLE),
        (S.PENDING, Event.KILLED, S.KILLED),
        (S.PENDING, Event.GANG_BROKEN, S.WORKER_FAILED),
        (S.ASSIGNED, Event.BUILDING, S.BUILDING),
        (S.ASSIGNED, Event.STARTED, S.RUNNING),
        (S.BUILDING, Event.STARTED, S.RUNNING),
        (S.RUNNING, Event.EXITED_ZERO, S.SUCCEEDED),
        (S.RUNNING, Event.KILLED, S.KILLED),
    ],
)
def test_simple_transitions_charge_nothing(state: S, event: Event, task: S) -> None:
    outcome = after(state, event)
    assert outcome.task is task
    assert outcome.charged is None
    assert outcome.counters == NONE


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_active_task_can_end_by_any_reported_end(state: S) -> None:
    for event in (Event.EXITED_ZERO, Event.USER_FAILED, Event.SYSTEM_FAILED, Event.CELL_LOST):
        assert after(state, event).attempt in TERMINAL


def test_a_user_failure_is_final_without_retries() -> None:
    outcome = after(S.RUNNING, Event.USER_FAILED)
    assert (outcome.task, outcome.attempt) == (S.FAILED, S.FAILED)
    assert outcome.charged is RetryBudget.FAILURE
    assert outcome.counters == Counters(failure=1)


@pytest.mark.parametrize(
    ("limit", "states"),
    [(1, [S.PENDING, S.FAILED]), (2, [S.PENDING, S.PENDING, S.FAILED])],
)
def test_a_user_failure_is_retried_while_the_counter_is_within_the_limit(
    limit: int, states: list[S]
) -> None:
    counters, seen = NONE, []
    for _ in states:
        outcome = after(S.RUNNING, Event.USER_FAILED, counters, RetryLimits(failure=limit))
        seen.append(outcome.task)
        counters = outcome.counters
    assert seen == states


def test_a_retry_waits_for_the_failure_back_off_but_an_end_does_not() -> None:
    assert (
        after(S.RUNNING, Event.USER_FAILED, limits=RetryLimits(failure=1)).wait
        is BackoffKind.FAILURE
    )
    assert after(S.RUNNING, Event.USER_FAILED).wait is BackoffKind.NONE


@pytest.mark.parametrize("event", [Event.CELL_LOST, Event.VANISHED])
def test_lost_cell_is_charged_to_the_preemption_budget(event: Event) -> None:
    limits = RetryLimits(preemption=1)
    first = after(S.RUNNING, event, limits=limits)
    assert (first.task, first.attempt) == (S.PENDING, S.WORKER_FAILED)
    assert first.counters.preemption == 1
    assert first.wait is BackoffKind.NONE
    second = after(S.RUNNING, event, first.counters, limits)
    assert second.task is S.WORKER_FAILED
    assert second.counters.preemption == 2


def test_preempting_an_assigned_task_is_free_even_without_budget() -> None:
    outcome = after(S.ASSIGNED, Event.PREEMPTED, limits=RetryLimits(preemption=0))
    assert (outcome.task, outcome.attempt, outcome.charged) == (S.PENDING, S.PREEMPTED, None)


@pytest.mark.parametrize("state", [S.BUILDING, S.RUNNING])
def test_preempting_a_started_task_is_charged_and_ends_it_when_exhausted(state: S) -> None:
    assert after(state, Event.PREEMPTED, limits=RetryLimits(preemption=1)).task is S.PENDING
    outcome = after(state, Event.PREEMPTED, limits=RetryLimits(preemption=0))
    assert outcome.task is S.PREEMPTED
    assert outcome.charged is RetryBudget.PREEMPTION


def test_draining_is_free() -> None:
    outcome = after(S.RUNNING, Event.DRAINED, limits=RetryLimits(preemption=0))
    assert (outcome.task, outcome.attempt, outcome.charged) == (S.PENDING, S.PREEMPTED, None)


def test_consecutive_system_failures_above_the_limit_end_the_task() -> None:
    counters, seen = NONE, []
    for _ in range(4):
        outcome = after(S.BUILDING, Event.SYSTEM_FAILED, counters)
        seen.append(outcome.task)
        counters = outcome.counters
    assert seen == [S.PENDING] * 3 + [S.FAILED]
    assert counters.system == 4


def test_a_retried_system_failure_avoids_its_cell() -> None:
    assert after(S.BUILDING, Event.SYSTEM_FAILED).avoids_cell
    assert not after(S.BUILDING, Event.SYSTEM_FAILED, limits=RetryLimits(system=0)).avoids_cell


def test_healthy_run_resets_consecutive_system_failures_but_not_the_total() -> None:
    bad = Counters(system=3, system_row=3)
    outcome = after(S.RUNNING, Event.SYSTEM_FAILED, bad, ran_seconds=HEALTHY_RUN_SECONDS)
    assert outcome.task is S.PENDING
    assert outcome.counters == Counters(system=4, system_row=1)
    short = HEALTHY_RUN_SECONDS - 1
    assert after(S.RUNNING, Event.SYSTEM_FAILED, bad, ran_seconds=short).task is S.FAILED


@pytest.mark.parametrize("event", [Event.CELL_LOST, Event.VANISHED, Event.DRAINED])
def test_healthy_run_resets_consecutive_system_failures_however_it_ends(event: Event) -> None:
    bad = Counters(system=3, system_row=3)
    healthy = after(S.RUNNING, event, bad, ran_seconds=HEALTHY_RUN_SECONDS)
    assert (healthy.counters.system, healthy.counters.system_row) == (3, 0)
    assert after(S.RUNNING, event, bad, ran_seconds=1.0).counters.system_row == 3


def test_user_failure_resets_consecutive_system_failures() -> None:
    bad = Counters(system=2, system_row=2)
    outcome = after(S.RUNNING, Event.USER_FAILED, bad, RetryLimits(failure=5))
    assert outcome.counters == Counters(failure=1, system=2, system_row=0)


@pytest.mark.parametrize("event", [Event.REFUSED, Event.START_EXPIRED])
def test_first_four_consecutive_refusals_are_free(event: Event) -> None:
    counters = NONE
    for _ in range(FREE_REFUSALS):
        outcome = after(S.ASSIGNED, event, counters)
        assert (outcome.task, outcome.charged) == (S.PENDING, None)
        assert outcome.wait is BackoffKind.SYSTEM
        counters = outcome.counters
    fifth = after(S.ASSIGNED, event, counters)
    assert fifth.charged is RetryBudget.SYSTEM
    assert fifth.counters.system == 1
    assert after(S.ASSIGNED, event, counters, RetryLimits(system=0)).task is S.FAILED


def test_progress_resets_consecutive_refusals() -> None:
    counters = Counters(refusal_row=3)
    assert after(S.ASSIGNED, Event.BUILDING, counters).counters.refusal_row == 0
    assert after(S.ASSIGNED, Event.STARTED, counters).counters.refusal_row == 0


def test_broken_gang_is_final_regardless_of_the_budget() -> None:
    outcome = after(S.RUNNING, Event.GANG_BROKEN)
    assert outcome.task is S.WORKER_FAILED
    assert after(S.RUNNING, Event.GANG_REQUEUED).task is S.PENDING


def test_unhealthy_service_is_restarted_without_limit() -> None:
    outcome = after(S.RUNNING, Event.HEALTH_FAILED, Counters(failure=1000))
    assert (outcome.task, outcome.charged) == (S.PENDING, None)
