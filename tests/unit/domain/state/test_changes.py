"""From an event to its effect: what is written of task, attempt and history, and what is kept."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import IllegalTransition
from controlplane.domain.state.backoff import wait_seconds
from controlplane.domain.state.effects import ChangeAttempt, ChangeTask, Step
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import REASONS, TERMINAL, Reason, ReleaseKind, RetryBudget
from controlplane.domain.state.task_changes import ChangeCause, change_task, keep_task, release_task
from controlplane.domain.state.transitions import BackoffKind, Counters, Event, RetryLimits
from tests.harness.domain.facts import CREATED, NOW, UID, attempt, task

RETRIES = RetryLimits(failure=1)
EARLIER = NOW - timedelta(seconds=7)


def ended(facts: TaskFacts, event: Event, cause: ChangeCause, **more: object) -> ChangeAttempt:
    change = change_task(facts, event, cause, now=NOW, **more).attempt  # type: ignore[arg-type]
    assert change is not None
    return change


def reported(**changes: object) -> ChangeAttempt:
    """Return the change of an attempt by its report."""
    return replace(ChangeAttempt(UID, S.ASSIGNED, S.ASSIGNED), **changes)  # type: ignore[arg-type]


def test_change_has_ids_states_counters_and_charge() -> None:
    facts = task(S.RUNNING, attempt(), limits=RETRIES)
    change = change_task(facts, Event.USER_FAILED, ChangeCause(Reason.EXIT_STATUS), now=NOW)
    assert (change.job_id, change.group_id, change.task_id) == (1, 2, 3)
    assert (change.task_from, change.task_to, change.at) == (S.RUNNING, S.PENDING, NOW)
    assert change.counters == Counters(failure=1)
    assert change.attempt is not None
    assert (change.attempt.uid, change.attempt.state_from) == (UID, S.RUNNING)
    assert change.attempt.state_to is S.FAILED
    assert (change.attempt.charged, change.attempt.charge) == (RetryBudget.FAILURE, 1)


def test_event_without_a_table_row_is_illegal() -> None:
    with pytest.raises(IllegalTransition):
        change_task(task(S.FAILED), Event.KILLED, ChangeCause(Reason.CANCELLED), now=NOW)


def test_the_end_of_an_attempt_has_its_reason_message_and_instant() -> None:
    facts = task(S.RUNNING, attempt())
    end = ended(facts, Event.KILLED, ChangeCause(Reason.CANCELLED, "by an operator"))
    assert (end.reason, end.message, end.finished_at) == (Reason.CANCELLED, "by an operator", NOW)


def test_message_of_the_report_is_used_if_the_cause_has_none() -> None:
    facts, report = task(S.RUNNING, attempt()), reported(message="told", finished_at=EARLIER)
    end = ended(facts, Event.USER_FAILED, ChangeCause(Reason.EXIT_STATUS), report=report)
    assert (end.message, end.finished_at) == ("told", EARLIER)
    assert end.state_from is S.RUNNING
    named = ended(facts, Event.USER_FAILED, ChangeCause(Reason.EXIT_STATUS, "mine"), report=report)
    assert named.message == "mine"


def test_attempt_that_continues_has_no_end_fields() -> None:
    report = reported(report_seq=11, phase="pulling", reason="why", message="told")
    facts = task(S.ASSIGNED, attempt(S.ASSIGNED))
    cause = ChangeCause(Reason.BUILDING, "pulling", release=ReleaseKind.CONFIRMED)
    on = ended(facts, Event.BUILDING, cause, report=report)
    assert (on.state_from, on.state_to) == (S.ASSIGNED, S.BUILDING)
    assert (on.report_seq, on.phase, on.reason, on.message) == (11, "pulling", "why", "told")
    assert (on.finished_at, on.release, on.stop_reason, on.charged) == (None, None, None, None)
    assert on.stop_force is False
    held = ended(facts, Event.BUILDING, ChangeCause(Reason.BUILDING))
    assert (held.release, held.stop_reason) == (None, None)


def test_end_keeps_the_facts_of_the_report() -> None:
    report = reported(report_seq=12, exit_code=3, result="r", container_id="c")
    end = ended(
        task(S.RUNNING, attempt()),
        Event.USER_FAILED,
        ChangeCause(Reason.EXIT_STATUS),
        report=report,
    )
    assert (end.report_seq, end.exit_code, end.result, end.container_id) == (12, 3, "r", "c")


@pytest.mark.parametrize("release", [ReleaseKind.CONFIRMED, ReleaseKind.CELL_LOST])
def test_attempt_known_to_be_gone_is_released_without_a_stop(
    release: ReleaseKind,
) -> None:
    change = change_task(
        task(S.RUNNING, attempt()),
        Event.VANISHED,
        ChangeCause(Reason.CELL_LOST, release=release),
        now=NOW,
    )
    assert change.attempt is not None
    assert (change.attempt.release, change.attempt.stop_reason) == (release, None)
    assert change.attempt_open is False


def test_attempt_that_may_still_run_is_stopped_and_keeps_its_task_open() -> None:
    change = change_task(
        task(S.RUNNING, attempt()), Event.KILLED, ChangeCause(Reason.CANCELLED, force=True), now=NOW
    )
    assert change.attempt is not None
    assert (change.attempt.release, change.attempt.stop_reason) == (None, Reason.CANCELLED)
    assert change.attempt.stop_force is True
    assert change.attempt_open is True


def test_stop_is_not_forced_by_default() -> None:
    assert (
        ended(task(S.RUNNING, attempt()), Event.KILLED, ChangeCause(Reason.CANCELLED)).stop_force
        is False
    )


def test_task_without_an_attempt_changes_only_itself() -> None:
    change = change_task(task(S.PENDING), Event.KILLED, ChangeCause(Reason.CANCELLED), now=NOW)
    assert (change.attempt, change.attempt_open, change.started_at) == (None, False, None)
    assert change.steps == (Step(S.PENDING, S.KILLED, None, Reason.CANCELLED, NOW, ""),)


def test_released_attempt_is_not_changed() -> None:
    facts = task(S.PENDING, attempt(S.FAILED, released_at=NOW))
    change = change_task(facts, Event.KILLED, ChangeCause(Reason.CANCELLED), now=NOW)
    assert (change.attempt, change.attempt_open) == (None, False)


def test_unreleased_attempt_of_a_pending_task_keeps_the_task_open() -> None:
    facts = task(S.PENDING, attempt(S.FAILED))
    change = change_task(facts, Event.KILLED, ChangeCause(Reason.CANCELLED), now=NOW)
    assert (change.attempt, change.attempt_open) == (None, True)


SYSTEM, USER = ChangeCause(Reason.SYSTEM_FAILURE), ChangeCause(Reason.EXIT_STATUS)
KNOWN = (3, 5, 8)  # the attempt is on cell 5


@pytest.mark.parametrize(
    ("event", "cause", "ran", "known", "avoided"),
    [
        (Event.SYSTEM_FAILED, SYSTEM, 1, (), (5,)),
        (Event.SYSTEM_FAILED, SYSTEM, 1, (3, 8), (3, 8, 5)),
        (Event.SYSTEM_FAILED, SYSTEM, 1, KNOWN, (3, 8, 5)),
        (Event.SYSTEM_FAILED, SYSTEM, 60, KNOWN, (5,)),
        (Event.SYSTEM_FAILED, SYSTEM, 1, tuple(range(10, 30)), (*range(15, 30), 5)),
        (Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), 1, KNOWN, KNOWN),
        (Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), 60, KNOWN, ()),
        (Event.DRAINED, ChangeCause(Reason.DRAINED), 1, KNOWN, KNOWN),
        (Event.USER_FAILED, USER, 1, KNOWN, ()),
        (Event.USER_FAILED, replace(USER, elsewhere=True), 1, (3,), (3, 5)),
        (Event.HEALTH_FAILED, USER, 1, KNOWN, KNOWN),
        (Event.KILLED, ChangeCause(Reason.CANCELLED), 1, KNOWN, ()),
        (Event.EXITED_ZERO, ChangeCause(Reason.SUCCEEDED), 1, KNOWN, ()),
    ],
)
def test_task_avoids_cells_with_system_failures_since_its_last_healthy_run(
    event: Event, cause: ChangeCause, ran: float, known: tuple[int, ...], avoided: tuple[int, ...]
) -> None:
    present = attempt(started_at=NOW - timedelta(seconds=ran))
    facts = replace(task(S.RUNNING, present, limits=RETRIES), avoid_cell_ids=known)
    assert change_task(facts, event, cause, now=NOW).avoid_cell_ids == avoided


def test_final_system_failure_clears_the_avoided_cells() -> None:
    facts = task(S.RUNNING, attempt(), limits=RetryLimits(system=0))
    facts = replace(facts, avoid_cell_ids=KNOWN)
    change = change_task(facts, Event.SYSTEM_FAILED, SYSTEM, now=NOW)
    assert (change.task_to, change.avoid_cell_ids) == (S.FAILED, ())


def test_retry_avoids_the_cell_only_after_a_system_failure() -> None:
    facts = task(S.BUILDING, attempt(S.BUILDING))
    failed = change_task(facts, Event.SYSTEM_FAILED, ChangeCause(Reason.SYSTEM_FAILURE), now=NOW)
    lost = change_task(facts, Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), now=NOW)
    assert (failed.avoid_cell_ids, lost.avoid_cell_ids) == ((5,), ())
    assert (failed.prefer_cell_id, lost.prefer_cell_id) == (None, None)


def test_retry_after_a_user_failure_prefers_the_same_cell() -> None:
    facts = task(S.RUNNING, attempt(S.RUNNING), limits=RetryLimits(failure=1))
    failed = change_task(facts, Event.USER_FAILED, ChangeCause(Reason.EXIT_STATUS), now=NOW)
    assert (failed.task_to, failed.prefer_cell_id, failed.avoid_cell_ids) == (S.PENDING, 5, ())


@pytest.mark.parametrize(
    ("event", "limits", "kind"),
    [
        (Event.SYSTEM_FAILED, RetryLimits(), FailureKind.SYSTEM),
        (Event.USER_FAILED, RetryLimits(), None),
        (Event.VANISHED, RetryLimits(), None),
    ],
)
def test_a_charge_to_the_system_budget_is_a_system_failure(
    event: Event, limits: RetryLimits, kind: FailureKind | None
) -> None:
    facts = task(S.RUNNING, attempt(), limits=limits)
    assert ended(facts, event, ChangeCause(Reason.SYSTEM_FAILURE)).failure_kind is kind
    reported_change = reported(failure_kind=FailureKind.OUTSIDE)
    named = ended(facts, event, ChangeCause(Reason.SYSTEM_FAILURE), report=reported_change)
    assert named.failure_kind is FailureKind.OUTSIDE


def test_retry_waits_for_its_back_off() -> None:
    facts = task(S.RUNNING, attempt(), limits=RETRIES)
    change = change_task(facts, Event.USER_FAILED, ChangeCause(Reason.EXIT_STATUS), now=NOW)
    seconds = wait_seconds(BackoffKind.FAILURE, Counters(failure=1), task_id=3)
    assert change.not_before == NOW + timedelta(seconds=seconds)
    lost = change_task(facts, Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), now=NOW)
    assert lost.not_before is None


def test_only_a_final_end_has_a_failure_reason() -> None:
    facts = task(S.RUNNING, attempt(), limits=RETRIES)
    cause = ChangeCause(Reason.EXIT_STATUS, failure_reason="exit status 3")
    assert change_task(facts, Event.USER_FAILED, cause, now=NOW).failure_reason == ""
    final = task(S.RUNNING, attempt())
    assert change_task(final, Event.USER_FAILED, cause, now=NOW).failure_reason == "exit status 3"
    assert change_task(final, Event.EXITED_ZERO, cause, now=NOW).failure_reason == ""
    unnamed = change_task(final, Event.KILLED, ChangeCause(Reason.TIMEOUT), now=NOW)
    assert unnamed.failure_reason == REASONS[Reason.TIMEOUT]


def test_kill_by_a_dependency_is_marked() -> None:
    cause = ChangeCause(Reason.DEPENDENCY_FAILED, by_dependency=True)
    assert change_task(task(S.PENDING), Event.KILLED, cause, now=NOW).by_dependency is True
    other = ChangeCause(Reason.CANCELLED)
    assert change_task(task(S.PENDING), Event.KILLED, other, now=NOW).by_dependency is False


LOST, REFUSED = Event.CELL_LOST, Event.REFUSED


@pytest.mark.parametrize(
    ("at_most_once", "never_created", "event", "state"),
    [
        (False, False, LOST, S.PENDING),
        (True, False, LOST, S.WORKER_FAILED),
        (True, True, LOST, S.PENDING),
        (False, True, LOST, S.PENDING),
        (True, False, REFUSED, S.FAILED),
        (True, True, REFUSED, S.PENDING),
    ],
)
def test_at_most_once_task_is_requeued_only_if_no_container_was_created(
    at_most_once: bool, never_created: bool, event: Event, state: S
) -> None:
    facts = replace(task(S.ASSIGNED, attempt(S.ASSIGNED)), at_most_once=at_most_once)
    cause = ChangeCause(Reason.REFUSED, never_created=never_created)
    assert change_task(facts, event, cause, now=NOW).task_to is state


def test_container_counts_as_created_by_default() -> None:
    facts = replace(task(S.ASSIGNED, attempt(S.ASSIGNED)), at_most_once=True)
    assert (
        change_task(facts, LOST, ChangeCause(Reason.CELL_LOST), now=NOW).task_to is S.WORKER_FAILED
    )


# How long it ran.

BAD = Counters(system=3, system_row=3)


@pytest.mark.parametrize(("seconds", "row"), [(59, 3), (60, 0)])
def test_run_time_counts_from_the_start_to_now(seconds: int, row: int) -> None:
    started = NOW - timedelta(seconds=seconds)
    facts = task(S.RUNNING, attempt(started_at=started), counters=BAD)
    change = change_task(facts, Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), now=NOW)
    assert change.counters.system_row == row
    assert change.started_at == started


@pytest.mark.parametrize(("seconds", "row"), [(59, 3), (60, 0)])
def test_reported_run_time_counts_to_the_reported_end(seconds: int, row: int) -> None:
    report = reported(started_at=CREATED, finished_at=CREATED + timedelta(seconds=seconds))
    facts = task(S.ASSIGNED, attempt(S.ASSIGNED), counters=BAD)
    change = change_task(facts, LOST, ChangeCause(Reason.CELL_LOST), now=NOW, report=report)
    assert change.counters.system_row == row
    assert change.started_at == CREATED


def test_first_reported_start_is_kept() -> None:
    facts, report = task(S.RUNNING, attempt()), reported(started_at=NOW)
    change = change_task(facts, LOST, ChangeCause(Reason.CELL_LOST), now=NOW, report=report)
    assert change.started_at == CREATED + timedelta(seconds=1)


def test_attempt_that_never_started_has_no_run_time() -> None:
    facts = task(S.BUILDING, attempt(S.BUILDING), counters=BAD)
    later = CREATED + timedelta(days=1)
    change = change_task(facts, LOST, ChangeCause(Reason.CELL_LOST), now=later)
    assert (change.counters.system_row, change.started_at) == (3, None)


def test_pending_task_has_no_run_time() -> None:
    ran = attempt(S.FAILED, started_at=NOW - timedelta(days=1), released_at=NOW)
    facts = task(S.PENDING, ran, counters=BAD)
    change = change_task(facts, Event.KILLED, ChangeCause(Reason.CANCELLED), now=NOW)
    assert change.counters.system_row == 3


# History.


@pytest.mark.parametrize("state", [S.ASSIGNED, S.BUILDING])
def test_start_reported_with_the_end_is_a_step_in_the_history(state: S) -> None:
    report = reported(started_at=EARLIER)
    change = change_task(
        task(state, attempt(state)),
        Event.EXITED_ZERO,
        ChangeCause(Reason.SUCCEEDED, "well"),
        now=NOW,
        report=report,
    )
    assert change.steps == (
        Step(state, S.RUNNING, S.RUNNING, Reason.STARTED, EARLIER),
        Step(S.RUNNING, S.SUCCEEDED, S.SUCCEEDED, Reason.SUCCEEDED, NOW, "well"),
    )


@pytest.mark.parametrize(
    ("state", "event", "report"),
    [
        (S.RUNNING, Event.EXITED_ZERO, reported(started_at=EARLIER)),
        (S.ASSIGNED, Event.STARTED, reported(started_at=EARLIER)),
        (S.ASSIGNED, Event.EXITED_ZERO, reported()),
        (S.ASSIGNED, Event.EXITED_ZERO, None),
    ],
)
def test_ordinary_change_is_one_step(state: S, event: Event, report: ChangeAttempt | None) -> None:
    facts = task(state, attempt(state))
    change = change_task(facts, event, ChangeCause(Reason.STARTED), now=NOW, report=report)
    assert [(step.task_from, step.task_to) for step in change.steps] == [(state, change.task_to)]
    assert change.steps[0].attempt_state is change.task_to


# Releases, and what leaves the task alone.


@pytest.mark.parametrize("state", sorted(TERMINAL - {S.UNSCHEDULABLE}))
def test_a_release_changes_neither_task_nor_state(state: S) -> None:
    facts = task(S.PENDING, attempt(state), counters=Counters(1, 2, 3))
    report = reported(exit_code=143, finished_at=NOW, started_at=NOW)
    change = release_task(
        facts, ReleaseKind.CONFIRMED, Reason.RELEASED, now=NOW, report=report, message="gone"
    )
    step = Step(S.PENDING, S.PENDING, state, Reason.RELEASED, NOW, "gone")
    assert change == ChangeTask(
        1,
        2,
        3,
        S.PENDING,
        S.PENDING,
        Counters(1, 2, 3),
        NOW,
        steps=(step,),
        attempt=ChangeAttempt(UID, state, state, exit_code=143, release=ReleaseKind.CONFIRMED),
        attempt_open=False,
    )


def test_release_works_without_a_report() -> None:
    facts = task(S.KILLED, attempt(S.KILLED))
    change = release_task(facts, ReleaseKind.OPERATOR, Reason.RELEASED_BY_OPERATOR, now=NOW)
    assert change.attempt == ChangeAttempt(UID, S.KILLED, S.KILLED, release=ReleaseKind.OPERATOR)
    assert change.steps[0].message == ""


def test_change_of_only_the_attempt_keeps_the_task() -> None:
    facts = task(S.PENDING, attempt(S.WORKER_FAILED), counters=Counters(1, 2, 3))
    assert keep_task(facts, now=NOW) == ChangeTask(
        1,
        2,
        3,
        S.PENDING,
        S.PENDING,
        Counters(1, 2, 3),
        NOW,
        attempt=ChangeAttempt(UID, S.WORKER_FAILED, S.WORKER_FAILED),
        attempt_open=True,
    )
    gone = task(S.PENDING, attempt(S.WORKER_FAILED, released_at=NOW))
    assert keep_task(gone, now=NOW).attempt_open is False


def test_keep_and_release_require_an_attempt() -> None:
    with pytest.raises(AssertionError, match="no attempt to change"):
        keep_task(task(S.PENDING), now=NOW)
    with pytest.raises(AssertionError, match="nothing to release"):
        release_task(task(S.PENDING), ReleaseKind.CONFIRMED, Reason.RELEASED, now=NOW)
