"""The rules of convergence: what each ends, how, and when it must leave alone."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from controlplane.commands.convergence.late_tasks import EndLateTasks
from controlplane.commands.convergence.rules import RULES
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.cell_health import (
    FAILING,
    UNCONFIRMED,
    ClearedCell,
    FailingCell,
    StuckCell,
    decide_cleared,
    decide_failing,
    decide_stuck_stops,
)
from controlplane.domain.convergence.endings import (
    decide_ended,
    decide_gang_requeue,
    decide_hopeless,
)
from controlplane.domain.convergence.lost_cells import (
    EXCLUSIVE_MARGIN_SECONDS,
    HELD,
    LOST,
    MASS_LOSS,
    decide_lost,
    decide_lost_attempt,
    held_alert,
    is_lost_attempt_due,
    mass_alert,
)
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.convergence.task_rules import (
    DRAINED,
    OVERRUNS,
    STUCK_BUILDS,
    UNANSWERED,
    UNCONFIRMED_STOPS,
    UNPLACED,
)
from controlplane.domain.state.effects import (
    ChangeAttempt,
    ChangePool,
    ChangeTask,
    ClearAlert,
    Effects,
    Step,
)
from controlplane.domain.state.facts import AttemptFacts, LeaseFacts, PoolSilence, TaskFacts
from controlplane.domain.state.states import (
    ACTIVE,
    ATTEMPT_STATES,
    ORDERED_STATES,
    REASONS,
    TERMINAL,
    CellState,
    Exclusive,
    MassLoss,
    Quarantine,
    Reason,
    ReleaseKind,
    RetryBudget,
)
from controlplane.domain.state.transitions import Counters, RetryLimits
from tests.harness.domain.facts import NOW, UID, attempt, task

SECOND = timedelta(seconds=1)


def of(change: ChangeTask) -> ChangeAttempt:
    assert change.attempt is not None
    return change.attempt


def why(change: ChangeTask) -> Reason:
    assert change.at == NOW
    assert change.steps[-1].at == NOW
    return change.steps[-1].reason


# The design's numbers.


def test_default_policy_has_the_documented_time_limits() -> None:
    assert Policy() == Policy(
        interval=5.0,
        lease=30.0,
        lease_factor=1.25,
        silent_ticks=3,
        gap_intervals=3.0,
        timeout_grace=30.0,
        force_patience=30.0,
        stop_patience=60.0,
        page=1000,
    )
    assert EXCLUSIVE_MARGIN_SECONDS == 10.0


# Rule 1, first half: which cells are lost.

LEASE = LeaseFacts(
    7, "cell-7", CellState.READY, "one", NOW - 40 * SECOND, NOW, silent_ticks=3, pool_id=1
)
POOL = PoolSilence(1, "default", MassLoss.HOLD, None, None, cells=4, silent=1)
NOTHING = Effects(cells=[], pools=[], alerts=[], cleared=[])
MOST = replace(POOL, silent=3, silent_since=NOW - 40 * SECOND)


def decide(
    lease: LeaseFacts = LEASE, pool: PoolSilence = POOL, policy: Policy | None = None
) -> Effects:
    return decide_lost([lease], [pool], now=NOW, policy=policy or Policy())


def lost(lease: LeaseFacts, pool: PoolSilence = POOL, policy: Policy | None = None) -> list[int]:
    return [change.cell_id for change in decide(lease, pool, policy).cells]


def test_cell_with_expired_lease_and_three_silent_ticks_is_lost() -> None:
    losses = decide()
    (change,) = losses.cells
    assert (change.cell_id, change.state) == (7, CellState.LOST)
    assert change.states == set(CellState) - {CellState.LOST}
    assert change.reason == "silent since 2030-01-01T00:01:00+00:00"
    assert change.alert is not None
    assert (change.alert.kind, change.alert.subject) == (LOST, "cell-7")
    assert {alert.kind for alert in change.cleared} == {UNCONFIRMED, FAILING}
    assert (losses.pools, losses.alerts, losses.cleared) == ([], [], [])


@pytest.mark.parametrize("state", CellState)
def test_cell_in_any_state_but_lost_can_be_lost(state: CellState) -> None:
    assert lost(replace(LEASE, state=state)) == ([] if state is CellState.LOST else [7])


@pytest.mark.parametrize(
    "changes", [{"expires_at": NOW + SECOND}, {"silent_ticks": 2}, {"silent_ticks": 0}]
)
def test_cell_is_not_lost_before_lease_and_silent_ticks_are_over(
    changes: dict[str, object],
) -> None:
    assert lost(replace(LEASE, **changes)) == []  # type: ignore[arg-type]


def test_number_of_silent_ticks_is_set_by_the_policy() -> None:
    assert lost(LEASE, policy=Policy(silent_ticks=4)) == []
    assert lost(replace(LEASE, silent_ticks=4), policy=Policy(silent_ticks=4)) == [7]


def test_cell_that_shut_down_in_order_is_lost_without_an_alert() -> None:
    for pool in (POOL, MOST, replace(MOST, held_at=NOW)):
        losses = decide(replace(LEASE, has_left=True), pool)
        assert [change.reason for change in losses.cells] == [
            "shut down in order, silent since 2030-01-01T00:01:00+00:00"
        ]
        assert [change.alert for change in losses.cells] == [None]


# Rule 1, held back: more than half of a pool is silent at once.


@pytest.mark.parametrize(
    ("cells", "silent", "is_held"),
    [(1, 1, False), (2, 2, False), (3, 2, False), (3, 3, True), (4, 3, True), (6, 3, False),
     (5, 3, True), (100, 50, False), (100, 51, True)],
)  # fmt: skip
def test_loss_of_more_than_half_of_a_pool_and_three_cells_is_held_back(
    cells: int, silent: int, is_held: bool
) -> None:
    pool = replace(POOL, cells=cells, silent=silent)
    losses = decide(LEASE, pool)
    assert (losses.pools == [ChangePool(1, NOW)], bool(losses.cells)) == (is_held, not is_held)
    assert losses.alerts == ([mass_alert(pool, NOW)] if is_held else [])


def test_no_loss_is_held_back_before_a_lease_expires() -> None:
    assert decide(replace(LEASE, expires_at=NOW + SECOND), MOST) == NOTHING


def test_held_back_loss_does_not_time_out() -> None:
    assert decide(LEASE, replace(MOST, held_at=NOW - timedelta(days=9))) == NOTHING


def test_mass_loss_alert_has_count_time_and_remedy() -> None:
    alert = mass_alert(MOST, NOW)
    assert (alert.kind, alert.subject) == (MASS_LOSS, "default")
    assert "3 of the 4 cells of pool default are silent" in alert.text
    assert "since 2030-01-01 00:01:00 UTC" in alert.text
    assert "POST /api/v1/pools/default/confirm-loss" in alert.text
    assert "one lease later" in mass_alert(replace(MOST, mass_loss=MassLoss.PROCEED), NOW).text


@pytest.mark.parametrize("silent", [2, 0])
def test_end_of_a_mass_loss_extends_leases_of_silent_cells(silent: int) -> None:
    pool = replace(MOST, silent=silent, held_at=NOW - SECOND)
    losses = decide(LEASE, pool)
    until = NOW + timedelta(seconds=37.5)
    assert (losses.pools, losses.cells) == ([ChangePool(1, None, lease_until=until)], [])
    assert losses.cleared == [ClearAlert(MASS_LOSS, "default")]
    assert decide(LEASE, replace(pool, held_at=None)).cells


def test_confirmed_loss_applies_to_cells_silent_since_before_the_confirmation() -> None:
    assert lost(LEASE, replace(MOST, confirmed_at=NOW)) == [7]
    assert lost(LEASE, replace(MOST, confirmed_at=LEASE.last_message_at + SECOND)) == [7]
    assert lost(LEASE, replace(MOST, confirmed_at=LEASE.last_message_at)) == []
    # The clock was put back since.
    assert lost(LEASE, replace(MOST, confirmed_at=NOW + SECOND)) == []


@pytest.mark.parametrize(
    ("held", "over", "is_lost"), [(30, 30, True), (29, 30, False), (30, 29, False)]
)
def test_pool_that_proceeds_loses_its_cells_one_lease_later(
    held: int, over: int, is_lost: bool
) -> None:
    pool = replace(MOST, mass_loss=MassLoss.PROCEED, held_at=NOW - held * SECOND)
    assert bool(lost(replace(LEASE, expires_at=NOW - over * SECOND), pool)) is is_lost


def test_pool_that_proceeds_first_holds_losses_back() -> None:
    pool = replace(MOST, mass_loss=MassLoss.PROCEED)
    losses = decide(replace(LEASE, expires_at=NOW - timedelta(days=1)), pool)
    assert (losses.pools, losses.cells) == ([ChangePool(1, NOW)], [])


def test_hold_with_a_start_in_the_future_is_started_again() -> None:
    pool = replace(MOST, held_at=NOW + SECOND)
    assert decide(LEASE, pool).pools == [ChangePool(1, NOW)]


# Rule 1, second half: what becomes of its attempts.


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_task_on_a_lost_cell_is_requeued_on_the_preemption_budget(state: S) -> None:
    change = decide_lost_attempt(task(state, attempt(state)), now=NOW)
    assert (change.task_to, of(change).state_to) == (S.PENDING, S.WORKER_FAILED)
    assert (of(change).charged, why(change)) == (RetryBudget.PREEMPTION, Reason.CELL_LOST)
    assert of(change).release is ReleaseKind.CELL_LOST
    assert (of(change).releasable_at, change.attempt_open) == (None, False)
    exhausted = task(state, attempt(state), limits=RetryLimits(preemption=0))
    assert decide_lost_attempt(exhausted, now=NOW).task_to is S.WORKER_FAILED


def test_ended_attempt_on_a_lost_cell_is_released_without_a_task_change() -> None:
    change = decide_lost_attempt(task(S.PENDING, attempt(S.FAILED)), now=NOW)
    assert (change.task_from, change.task_to) == (S.PENDING, S.PENDING)
    assert (of(change).state_to, of(change).charged) == (S.FAILED, None)
    assert (of(change).release, why(change)) == (ReleaseKind.CELL_LOST, Reason.CELL_LOST)


def exclusive(state: S, kind: Exclusive, present: AttemptFacts) -> TaskFacts:
    return replace(task(state, present), exclusive=kind)


def test_exclusive_task_on_a_lost_cell_stays_open_until_the_margin_is_over() -> None:
    facts = exclusive(S.RUNNING, Exclusive.LEASE, attempt())
    change = decide_lost_attempt(facts, now=NOW)
    assert (change.task_to, of(change).state_to) == (S.PENDING, S.WORKER_FAILED)
    assert (of(change).release, change.attempt_open) == (None, True)
    assert of(change).releasable_at == NOW + timedelta(seconds=10)
    assert (of(change).stop_reason, why(change)) == (Reason.CELL_LOST, Reason.CELL_LOST)


def test_strictly_exclusive_attempt_is_not_released_by_a_lost_cell() -> None:
    facts = exclusive(S.RUNNING, Exclusive.STRICT, attempt())
    change = decide_lost_attempt(facts, now=NOW)
    assert (change.task_to, of(change).state_to) == (S.PENDING, S.WORKER_FAILED)
    assert (of(change).release, of(change).releasable_at) == (None, None)
    assert change.attempt_open is True


def test_ended_exclusive_attempt_on_a_lost_cell_gets_a_release_instant() -> None:
    facts = exclusive(S.KILLED, Exclusive.LEASE, attempt(S.KILLED))
    change = decide_lost_attempt(facts, now=NOW)
    assert (change.task_to, change.steps, of(change).release) == (S.KILLED, (), None)
    assert of(change).releasable_at == NOW + timedelta(seconds=EXCLUSIVE_MARGIN_SECONDS)
    assert (change.at, change.attempt_open) == (NOW, True)


@pytest.mark.parametrize("state", [S.KILLED, S.RUNNING])
def test_exclusive_attempt_is_released_at_its_release_instant(state: S) -> None:
    facts = exclusive(state, Exclusive.LEASE, attempt(state, releasable_at=NOW))
    change = decide_lost_attempt(facts, now=NOW)
    assert of(change).release is ReleaseKind.CELL_LOST
    assert why(change) is Reason.CELL_LOST
    assert change.attempt_open is False


def test_release_instant_is_not_changed_once_set() -> None:
    present = attempt(releasable_at=NOW + SECOND)
    change = decide_lost_attempt(exclusive(S.RUNNING, Exclusive.LEASE, present), now=NOW)
    assert (of(change).release, of(change).releasable_at) == (None, NOW + SECOND)


NO, UNTIL_LEASE, STRICT = Exclusive.NO, Exclusive.LEASE, Exclusive.STRICT


@pytest.mark.parametrize(
    ("kind", "present", "due"),
    [
        (NO, None, False),
        (NO, attempt(released_at=NOW), False),
        (NO, attempt(), True),
        (NO, attempt(S.FAILED), True),
        (UNTIL_LEASE, attempt(), True),
        (UNTIL_LEASE, attempt(S.FAILED), True),
        (UNTIL_LEASE, attempt(S.FAILED, releasable_at=NOW + SECOND), False),
        (UNTIL_LEASE, attempt(S.FAILED, releasable_at=NOW), True),
        (UNTIL_LEASE, attempt(S.FAILED, released_at=NOW), False),
        (STRICT, attempt(), True),
        (STRICT, attempt(S.FAILED), False),
        (STRICT, attempt(S.FAILED, releasable_at=NOW), False),
    ],
)
def test_attempt_on_a_lost_cell_is_due_only_while_action_is_needed(
    kind: Exclusive, present: AttemptFacts | None, due: bool
) -> None:
    facts = replace(task(S.RUNNING, present), exclusive=kind)
    assert is_lost_attempt_due(facts, NOW) is due


def test_held_strict_attempt_raises_an_alert() -> None:
    alert = held_alert(UID, 3)
    assert (alert.kind, alert.subject) == (HELD, f"attempt {UID}")
    assert alert.text.startswith("task 3 is held: its strictly exclusive attempt was on a cell")


# Rules 2 to 5.


def test_order_without_an_answer_ends_free_of_charge_and_is_stopped() -> None:
    change = UNANSWERED.decide(task(S.ASSIGNED, attempt(S.ASSIGNED)), now=NOW)
    assert (change.task_to, of(change).state_to) == (S.PENDING, S.WORKER_FAILED)
    assert (of(change).charged, of(change).release) == (None, None)
    assert (of(change).stop_reason, why(change)) == (Reason.START_EXPIRED, Reason.START_EXPIRED)
    assert change.avoid_cell_ids == (5,)


def test_build_timeout_is_a_system_failure() -> None:
    change = STUCK_BUILDS.decide(task(S.BUILDING, attempt(S.BUILDING)), now=NOW)
    assert (change.task_to, of(change).state_to) == (S.PENDING, S.FAILED)
    assert (of(change).charged, why(change)) == (RetryBudget.SYSTEM, Reason.BUILD_TIMEOUT)
    assert (of(change).release, of(change).stop_reason) == (None, Reason.BUILD_TIMEOUT)


def test_a_task_past_its_timeout_is_killed() -> None:
    change = OVERRUNS.decide(task(S.RUNNING, attempt()), now=NOW)
    assert (change.task_to, of(change).state_to) == (S.KILLED, S.KILLED)
    assert (of(change).stop_reason, why(change)) == (Reason.TIMEOUT, Reason.TIMEOUT)


def test_task_past_its_lifetime_is_killed_with_reason_lifetime_over() -> None:
    facts = replace(task(S.RUNNING, attempt()), timeout_is_lifetime=True)
    change = OVERRUNS.decide(facts, now=NOW)
    assert (change.task_to, of(change).state_to) == (S.KILLED, S.KILLED)
    assert (of(change).stop_reason, why(change)) == (Reason.LIFETIME_OVER, Reason.LIFETIME_OVER)


def test_a_task_past_its_scheduling_deadline_is_unschedulable() -> None:
    change = UNPLACED.decide(task(S.PENDING), now=NOW)
    assert (change.task_to, why(change)) == (S.UNSCHEDULABLE, Reason.SCHEDULING_DEADLINE)


TASK_RULES = [rule.run.rule for rule in RULES if isinstance(rule.run, EndLateTasks)]
HOLDS = {rule.name: rule for rule in TASK_RULES}


def holding(facts: TaskFacts) -> list[str]:
    return [rule.name for rule in TASK_RULES if rule.is_due(facts, NOW)]


def test_task_rules_have_the_specified_order() -> None:
    assert [(rule.name, rule.decide) for rule in TASK_RULES] == [
        ("attempts_of_lost_cells", decide_lost_attempt),
        ("unanswered", UNANSWERED.decide),
        ("stuck_builds", STUCK_BUILDS.decide),
        ("overruns", OVERRUNS.decide),
        ("drained", DRAINED.decide),
        ("unplaced", UNPLACED.decide),
        ("unconfirmed_stops", UNCONFIRMED_STOPS.decide),
    ]


@pytest.mark.parametrize("state", sorted(ATTEMPT_STATES))
def test_each_attempt_state_has_its_rules(state: S) -> None:
    rule = {S.ASSIGNED: ["unanswered"], S.BUILDING: ["stuck_builds"], S.RUNNING: ["overruns"]}
    late = attempt(state, start_before=NOW)
    last = "drained" if state in ACTIVE else "unconfirmed_stops"
    assert holding(task(state, late)) == ["attempts_of_lost_cells", *rule.get(state, []), last]


@pytest.mark.parametrize("state", sorted(ATTEMPT_STATES & TERMINAL))
def test_an_unconfirmed_stop_is_forced_once_and_nothing_else_changes(state: S) -> None:
    facts = task(S.PENDING, attempt(state), counters=Counters(1, 2, 3))
    change = UNCONFIRMED_STOPS.decide(facts, now=NOW)
    assert (change.task_from, change.task_to, change.counters) == (
        S.PENDING,
        S.PENDING,
        Counters(1, 2, 3),
    )
    assert change.attempt_open
    assert of(change) == ChangeAttempt(UID, state, state, stop_force=True)
    assert change.steps == (Step(S.PENDING, S.PENDING, state, Reason.STOP_FORCED, NOW),)
    forced = task(S.PENDING, attempt(state, is_stop_forced=True))
    assert holding(forced) == ["attempts_of_lost_cells", "unplaced"]


def test_order_can_be_answered_until_its_start_deadline() -> None:
    due = [attempt(S.ASSIGNED, start_before=NOW + n * SECOND) for n in (-1, 0, 1)]
    rule = HOLDS["unanswered"]
    assert [rule.is_due(task(S.ASSIGNED, one), NOW) for one in due] == [True, True, False]


def test_at_most_once_order_without_an_answer_waits_for_its_cell() -> None:
    facts = replace(task(S.ASSIGNED, attempt(S.ASSIGNED)), at_most_once=True)
    assert holding(facts) == ["attempts_of_lost_cells"]


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_no_rule_is_due_for_a_released_attempt(state: S) -> None:
    assert holding(task(state, attempt(state, released_at=NOW))) == []


def test_scheduling_deadline_applies_to_pending_tasks_with_and_without_attempts() -> None:
    assert holding(task(S.PENDING)) == ["unplaced"]
    assert holding(task(S.PENDING, attempt(S.FAILED, released_at=NOW))) == ["unplaced"]
    assert holding(task(S.KILLED)) == []


# Rule 6.


def test_cell_with_unconfirmed_stops_is_quarantined_with_an_alert() -> None:
    stuck = [
        StuckCell(5, "north", 1, CellState.READY),
        StuckCell(6, "south", 3, CellState.DRAINING),
    ]
    effects = decide_stuck_stops(stuck, now=NOW)
    assert [(c.cell_id, c.state, c.reason) for c in effects.cells] == [
        (5, CellState.QUARANTINED, "1 stop is not confirmed"),
        (6, CellState.QUARANTINED, "3 stops are not confirmed"),
    ]
    assert {c.states for c in effects.cells} == {frozenset(ORDERED_STATES)}
    assert {c.cause for c in effects.cells} == {Quarantine.STOPS}
    alerts = [change.alert for change in effects.cells]
    assert [(a.kind, a.subject, a.text) for a in alerts if a] == [
        (UNCONFIRMED, "north", "cell north: 1 stop is not confirmed"),
        (UNCONFIRMED, "south", "cell south: 3 stops are not confirmed"),
    ]


@pytest.mark.parametrize(
    ("cause", "until", "becomes"),
    [
        (Quarantine.UNFIT, None, Quarantine.UNFIT),
        (Quarantine.ORPHANS, NOW, Quarantine.ORPHANS),
        (Quarantine.FAILURES, NOW + timedelta(seconds=1), Quarantine.FAILURES),
        (Quarantine.FAILURES, NOW, Quarantine.STOPS),
    ],
)
def test_earlier_quarantine_cause_is_kept_until_it_is_over(
    cause: Quarantine, until: datetime | None, becomes: Quarantine
) -> None:
    stuck = StuckCell(5, "north", 1, CellState.QUARANTINED, "because", cause, until)
    effects = decide_stuck_stops([stuck], now=NOW)
    [change] = effects.cells
    assert (change.states, change.cause_before) == ({CellState.QUARANTINED}, cause)
    is_over = becomes is Quarantine.STOPS
    assert (change.state, change.cause) == (CellState.QUARANTINED, becomes)
    assert (change.until, change.trusted_at) == ((None, NOW) if is_over else (until, None))
    assert change.reason == ("1 stop is not confirmed" if is_over else "because")
    assert change.alert is not None
    assert change.alert.kind == UNCONFIRMED
    # Failures whose time is over do not count, though the cell is kept for its stops.
    assert change.cleared == ((ClearAlert(FAILING, "north"),) if is_over else ())


def test_end_of_a_flooding_quarantine_keeps_earlier_failures_counted() -> None:
    flooding = Quarantine.FLOODING
    stuck = StuckCell(5, "north", 1, CellState.QUARANTINED, "because", flooding, NOW)
    [change] = decide_stuck_stops([stuck], now=NOW).cells
    assert (change.cause, change.cause_before) == (Quarantine.STOPS, flooding)
    assert (change.trusted_at, change.cleared) == (None, ())


def test_cell_with_another_quarantine_cause_stays_quarantined() -> None:
    cell = ClearedCell(5, "north", Quarantine.UNFIT, CellState.READY, stays=True)
    cleared = [ClearAlert(UNCONFIRMED, "north")]
    assert decide_cleared([cell], now=NOW) == Effects(cells=[], cleared=cleared)


@pytest.mark.parametrize("ordered", ORDERED_STATES)
@pytest.mark.parametrize("cause", [Quarantine.STOPS, Quarantine.FAILURES, None])
def test_cell_returns_to_its_ordered_state_after_quarantine(
    cause: Quarantine | None, ordered: CellState
) -> None:
    (change,) = decide_cleared([ClearedCell(5, "north", cause, ordered)], now=NOW).cells
    assert (change.cell_id, change.state, change.cause) == (5, ordered, None)
    assert change.states == {CellState.QUARANTINED}
    # What failed before must not put it aside again at once.
    assert change.trusted_at == (NOW if cause is Quarantine.FAILURES else None)
    assert set(change.cleared) == {ClearAlert(kind, "north") for kind in (UNCONFIRMED, FAILING)}


def test_failing_cell_is_quarantined_for_ten_minutes() -> None:
    text = "the engine has no\nspace left " + "x" * 1000
    effects = decide_failing([FailingCell(5, "north", text)], now=NOW, policy=Policy())
    (change,) = effects.cells
    assert (change.state, change.cause) == (CellState.QUARANTINED, Quarantine.FAILURES)
    assert change.until == NOW + timedelta(minutes=10)
    assert change.states == {CellState.READY}
    assert change.alert is not None
    assert (change.alert.kind, change.alert.subject) == (FAILING, "north")
    # The state of a cell is for all users; the text is of a job and for operators.
    assert change.reason == "the last 10 attempts on it were system failures"
    assert change.alert.text.startswith(
        f"cell north: {change.reason}; the newest: the engine has no space left xxx"
    )
    assert len(change.alert.text) < 300


# Rules 7 and 8.


def test_a_task_whose_dependency_failed_is_killed_and_excused() -> None:
    change = decide_hopeless(task(S.PENDING), now=NOW)
    assert (change.task_to, why(change)) == (S.KILLED, Reason.DEPENDENCY_FAILED)
    assert change.by_dependency is True


def end(reason: Reason, state: S = S.RUNNING, *, force: bool = False) -> ChangeTask:
    present = attempt(state) if state in ACTIVE else None
    return decide_ended(task(state, present), reason=reason, message="enough", force=force, now=NOW)


@pytest.mark.parametrize(
    ("reason", "task_reason"),
    [
        (Reason.CANCELLED, Reason.CANCELLED),
        (Reason.PARENT_ENDED, Reason.PARENT_ENDED),
        (Reason.TASKS_DECIDED, Reason.JOB_ENDED),
    ],
)
def test_ending_job_kills_its_open_tasks_with_its_reason(
    reason: Reason, task_reason: Reason
) -> None:
    change = end(reason)
    assert (change.task_to, why(change)) == (S.KILLED, task_reason)
    assert (change.failure_reason, change.steps[-1].message) == (REASONS[task_reason], "enough")
    assert (of(change).stop_reason, of(change).stop_force) == (task_reason, False)
    assert end(reason, S.PENDING).task_to is S.KILLED
    assert change.by_dependency is False


def test_forced_end_of_a_job_forces_the_stops() -> None:
    assert of(end(Reason.CANCELLED, force=True)).stop_force is True


@pytest.mark.parametrize("state", [S.PENDING, *sorted(ACTIVE)])
def test_the_siblings_of_a_failed_member_are_worker_failed(state: S) -> None:
    change = end(Reason.GANG_SIBLING_FAILED, state)
    assert (change.task_to, why(change)) == (S.WORKER_FAILED, Reason.GANG_SIBLING_FAILED)


def test_broken_gang_is_requeued_free_of_charge() -> None:
    change = decide_gang_requeue(
        task(S.RUNNING, attempt(), limits=RetryLimits(0, 0, 0)), stop_seconds=10.0, now=NOW
    )
    assert (change.task_to, of(change).state_to) == (S.PENDING, S.WORKER_FAILED)
    assert (of(change).charged, of(change).release) == (None, None)
    assert (of(change).stop_reason, why(change)) == (Reason.GANG_REQUEUED, Reason.GANG_REQUEUED)
    assert change.not_before is None
