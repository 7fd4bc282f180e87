"""The transition table against the specification's, written down a second time, whole."""

from typing import NamedTuple

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import ACTIVE, RetryBudget
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
    is_legal,
)


class Row(NamedTuple):
    """What becomes of a task while the budget lasts, and when it does not (or is not charged)."""

    lasts: S
    exhausted: S
    attempt: S | None = None
    budget: RetryBudget | None = None
    wait: BackoffKind = BackoffKind.NONE
    avoids_cell: bool = False
    prefers_cell: bool = False


def final(task: S, attempt: S | None = None) -> Row:
    return Row(task, task, attempt)


REFUSED = Row(S.PENDING, S.PENDING, S.WORKER_FAILED, wait=BackoffKind.SYSTEM, avoids_cell=True)
FAILED = Row(
    S.PENDING, S.FAILED, S.FAILED, RetryBudget.FAILURE, BackoffKind.FAILURE, prefers_cell=True
)
SYSTEM_FAILED = Row(
    S.PENDING, S.FAILED, S.FAILED, RetryBudget.SYSTEM, BackoffKind.SYSTEM, avoids_cell=True
)
LOST = Row(S.PENDING, S.WORKER_FAILED, S.WORKER_FAILED, RetryBudget.PREEMPTION)
EVICTED = Row(S.PENDING, S.PREEMPTED, S.PREEMPTED, RetryBudget.PREEMPTION)
EVICTED_FREE = Row(S.PENDING, S.PENDING, S.PREEMPTED)
BROKEN = Row(S.WORKER_FAILED, S.WORKER_FAILED, S.WORKER_FAILED, RetryBudget.PREEMPTION)

SPECIFIED: dict[tuple[S, Event], Row] = {
    (S.PENDING, Event.PLACED): final(S.ASSIGNED, S.ASSIGNED),
    (S.PENDING, Event.DEADLINE_PASSED): final(S.UNSCHEDULABLE),
    (S.PENDING, Event.CACHE_HIT): final(S.SUCCEEDED),
    (S.PENDING, Event.REJECTED): final(S.UNSCHEDULABLE),
    (S.PENDING, Event.KILLED): final(S.KILLED),
    (S.PENDING, Event.GANG_BROKEN): final(S.WORKER_FAILED),
    (S.ASSIGNED, Event.BUILDING): final(S.BUILDING, S.BUILDING),
    (S.ASSIGNED, Event.STARTED): final(S.RUNNING, S.RUNNING),
    (S.BUILDING, Event.STARTED): final(S.RUNNING, S.RUNNING),
    (S.ASSIGNED, Event.REFUSED): REFUSED,
    (S.ASSIGNED, Event.START_EXPIRED): REFUSED,
    (S.ASSIGNED, Event.PREEMPTED): EVICTED_FREE,
    (S.BUILDING, Event.PREEMPTED): EVICTED,
    (S.RUNNING, Event.PREEMPTED): EVICTED,
}
for active in (S.ASSIGNED, S.BUILDING, S.RUNNING):
    SPECIFIED |= {
        (active, Event.EXITED_ZERO): final(S.SUCCEEDED, S.SUCCEEDED),
        (active, Event.HEALTH_FAILED): Row(S.PENDING, S.PENDING, S.FAILED, None, BackoffKind.CRASH),
        (active, Event.USER_FAILED): FAILED,
        (active, Event.SYSTEM_FAILED): SYSTEM_FAILED,
        (active, Event.CELL_LOST): LOST,
        (active, Event.VANISHED): LOST,
        (active, Event.DRAINED): EVICTED_FREE,
        (active, Event.KILLED): final(S.KILLED, S.KILLED),
        (active, Event.GANG_BROKEN): BROKEN,
        (active, Event.GANG_REQUEUED): Row(S.PENDING, S.PENDING, S.WORKER_FAILED),
    }
# How what would be tried again ends if it may run at most once.
FINAL = {
    Event.USER_FAILED: S.FAILED,
    Event.SYSTEM_FAILED: S.FAILED,
    Event.HEALTH_FAILED: S.FAILED,
    Event.REFUSED: S.FAILED,
    Event.START_EXPIRED: S.FAILED,
    Event.CELL_LOST: S.WORKER_FAILED,
    Event.VANISHED: S.WORKER_FAILED,
    Event.GANG_REQUEUED: S.WORKER_FAILED,
    Event.PREEMPTED: S.PREEMPTED,
    Event.DRAINED: S.PREEMPTED,
}
PLENTY, NOTHING = RetryLimits(9, 9, 9), RetryLimits(0, 0, 0)


def after(
    key: tuple[S, Event],
    limits: RetryLimits = PLENTY,
    counters: Counters | None = None,
    ran_seconds: float = 0.0,
    is_final: bool = False,
) -> TransitionResult:
    return advance(
        *key,
        counters=counters or Counters(),
        limits=limits,
        ran_seconds=ran_seconds,
        is_final=is_final,
    )


def test_table_has_exactly_the_specified_rows() -> None:
    assert set(TRANSITIONS) == set(SPECIFIED)
    assert {(s, e) for s in S for e in Event if is_legal(s, e)} == set(SPECIFIED)


@pytest.mark.parametrize("key", SPECIFIED, ids=lambda key: f"{key[0].name}-{key[1]}")
def test_a_row_is_as_specified(key: tuple[S, Event]) -> None:
    row = SPECIFIED[key]
    lasts, exhausted = after(key), after(key, NOTHING)
    assert (lasts.task, lasts.attempt, lasts.charged) == (row.lasts, row.attempt, row.budget)
    assert (exhausted.task, exhausted.attempt) == (row.exhausted, row.attempt)
    assert exhausted.charged is row.budget
    for outcome in (lasts, exhausted):
        requeued = outcome.task is S.PENDING
        assert outcome.wait is (row.wait if requeued else BackoffKind.NONE)
        assert outcome.avoids_cell is (row.avoids_cell and requeued)
        assert outcome.prefers_cell is (row.prefers_cell and requeued)


@pytest.mark.parametrize("key", SPECIFIED, ids=lambda key: f"{key[0].name}-{key[1]}")
def test_at_most_once_task_is_never_requeued(key: tuple[S, Event]) -> None:
    usual, outcome = after(key), after(key, is_final=True)
    assert outcome.task is (FINAL[key[1]] if usual.task is S.PENDING else usual.task)
    assert outcome.attempt is usual.attempt
    assert (outcome.charged, outcome.counters) == (usual.charged, usual.counters)
    cell_effects = (outcome.wait, outcome.avoids_cell, outcome.prefers_cell)
    assert cell_effects == (BackoffKind.NONE, False, False)


CHARGED = {key: row.budget for key, row in SPECIFIED.items() if row.budget and row is not BROKEN}


@pytest.mark.parametrize("key", CHARGED, ids=lambda key: f"{key[0].name}-{key[1]}")
def test_charge_increments_only_its_own_budget(key: tuple[S, Event]) -> None:
    outcome = after(key, counters=Counters(1, 2, 3))
    expected = {
        RetryBudget.FAILURE: Counters(2, 2, 3),
        RetryBudget.PREEMPTION: Counters(1, 3, 3),
        RetryBudget.SYSTEM: Counters(1, 2, 4, system_row=1),
    }
    assert outcome.charge == 1
    assert outcome.counters == expected[CHARGED[key]]


@pytest.mark.parametrize("key", CHARGED, ids=lambda key: f"{key[0].name}-{key[1]}")
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_task_is_retried_up_to_the_limit_and_ends_above_it(
    key: tuple[S, Event], limit: int
) -> None:
    limits = RetryLimits(limit, limit, limit)
    within = Counters(limit - 1, limit - 1, 7, system_row=limit - 1)
    above = Counters(limit, limit, 7, system_row=limit)
    assert limit == 0 or after(key, limits, within).task is S.PENDING
    assert after(key, limits, above).task is SPECIFIED[key].exhausted


FREE = [key for key, row in SPECIFIED.items() if row.budget is None]


@pytest.mark.parametrize("key", FREE, ids=lambda key: f"{key[0].name}-{key[1]}")
def test_free_end_charges_nothing(key: tuple[S, Event]) -> None:
    outcome = after(key)
    assert (outcome.charged, outcome.charge) == (None, 0)
    row_of_one = (Counters(refusal_row=1), Counters(consecutive_crashes=1))
    assert outcome.counters in (Counters(), *row_of_one)


@pytest.mark.parametrize("state", sorted(ACTIVE))
@pytest.mark.parametrize("used", [0, 1, 4])
def test_broken_gang_exhausts_the_preemption_budget(state: S, used: int) -> None:
    outcome = after(
        (state, Event.GANG_BROKEN), RetryLimits(preemption=4), Counters(preemption=used)
    )
    assert outcome.task is S.WORKER_FAILED
    assert (outcome.charged, outcome.charge) == (RetryBudget.PREEMPTION, 4 + 1 - used)
    assert outcome.counters.preemption == 4 + 1


def test_default_limits_are_as_documented() -> None:
    # Iris: failure 0, preemption 100. Flyte: 3 consecutive system failures.
    assert RetryLimits() == RetryLimits(failure=0, preemption=100, system=3, permanent=False)
    assert Counters() == Counters(0, 0, 0, 0, 0, 0)
    assert HEALTHY_RUN_SECONDS == 60.0


@pytest.mark.parametrize("event", [Event.REFUSED, Event.START_EXPIRED])
def test_the_fifth_refusal_in_a_row_is_the_first_that_is_charged(event: Event) -> None:
    assert FREE_REFUSALS == 4
    key = (S.ASSIGNED, event)
    fourth = after(key, NOTHING, Counters(refusal_row=3))
    assert (fourth.task, fourth.charged, fourth.charge) == (S.PENDING, None, 0)
    assert fourth.counters == Counters(refusal_row=4)
    fifth = after(key, PLENTY, fourth.counters)
    assert (fifth.task, fifth.charged, fifth.charge) == (S.PENDING, RetryBudget.SYSTEM, 1)
    assert fifth.counters == Counters(system=1, system_row=1, refusal_row=5)
    assert after(key, NOTHING, fourth.counters).task is S.FAILED


@pytest.mark.parametrize("event", [Event.SYSTEM_FAILED, Event.CELL_LOST, Event.DRAINED])
def test_consecutive_refusals_do_not_change_other_charges(event: Event) -> None:
    key = (S.ASSIGNED, event)
    assert after(key, counters=Counters(refusal_row=9)).charged is SPECIFIED[key].budget


BOTH_ROWS = Counters(system=2, system_row=2, refusal_row=3)


def rows(outcome: TransitionResult) -> tuple[int, int]:
    return outcome.counters.system_row, outcome.counters.refusal_row


@pytest.mark.parametrize(
    ("key", "left"),
    [
        ((S.ASSIGNED, Event.BUILDING), (2, 0)),
        ((S.ASSIGNED, Event.STARTED), (2, 0)),
        ((S.RUNNING, Event.EXITED_ZERO), (0, 0)),
        ((S.RUNNING, Event.USER_FAILED), (0, 0)),
        ((S.RUNNING, Event.SYSTEM_FAILED), (3, 3)),
        ((S.RUNNING, Event.CELL_LOST), (2, 3)),
        ((S.RUNNING, Event.DRAINED), (2, 3)),
        ((S.ASSIGNED, Event.REFUSED), (2, 4)),
    ],
)
def test_which_ends_reset_the_consecutive_counters(
    key: tuple[S, Event], left: tuple[int, int]
) -> None:
    assert rows(after(key, counters=BOTH_ROWS)) == left


@pytest.mark.parametrize("counters", [Counters(system_row=1), Counters(refusal_row=1)])
def test_success_resets_each_consecutive_counter(counters: Counters) -> None:
    outcome = after((S.RUNNING, Event.EXITED_ZERO), counters=counters)
    assert rows(outcome) == (0, 0)


@pytest.mark.parametrize(
    ("ran_seconds", "left"), [(0.0, (2, 3)), (59.9, (2, 3)), (60.0, (0, 0)), (61.0, (0, 0))]
)
def test_sixty_seconds_of_running_reset_the_consecutive_counters(
    ran_seconds: float, left: tuple[int, int]
) -> None:
    key = (S.RUNNING, Event.CELL_LOST)
    assert rows(after(key, counters=BOTH_ROWS, ran_seconds=ran_seconds)) == left


def test_illegal_event_error_names_the_state() -> None:
    with pytest.raises(Exception, match="event placed is not allowed for a task in state RUNNING"):
        after((S.RUNNING, Event.PLACED))
