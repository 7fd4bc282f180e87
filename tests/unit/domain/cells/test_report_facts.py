"""Reports: every guard by itself, every fact in its column, every end with its words."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.reports import IgnoredReport, ReportSender, decide_report
from controlplane.domain.state.effects import ChangeAttempt, ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import (
    ACTIVE,
    ATTEMPT_STATES,
    REASONS,
    TERMINAL,
    Reason,
    ReleaseKind,
    RetryBudget,
)
from controlplane.domain.state.transitions import Counters, RetryLimits
from tests.harness.domain.facts import CREATED, NOW, SENDER, UID, attempt, report, task

EPOCH = CREATED.timestamp()
SECOND = timedelta(seconds=1)


def decide(
    incoming: AttemptReport, facts: TaskFacts | None = None, sender: ReportSender = SENDER
) -> ChangeTask | IgnoredReport:
    return decide_report(facts or task(S.RUNNING, attempt()), incoming, sender, now=NOW)


def changed(incoming: AttemptReport, facts: TaskFacts | None = None) -> ChangeTask:
    decision = decide(incoming, facts)
    assert isinstance(decision, ChangeTask), decision
    return decision


def written(incoming: AttemptReport, facts: TaskFacts | None = None) -> ChangeAttempt:
    change = changed(incoming, facts).attempt
    assert change is not None
    return change


# The guards, in order.


def test_report_for_a_task_without_an_attempt_is_ignored() -> None:
    assert decide(report(S.SUCCEEDED), task(S.PENDING)) == IgnoredReport("unknown_attempt")


def test_report_for_an_earlier_attempt_is_ignored() -> None:
    assert decide(replace(report(S.SUCCEEDED), uid="another")) == IgnoredReport("unknown_attempt")


@pytest.mark.parametrize("state", sorted(S))
def test_report_never_moves_an_attempt_backwards(state: S) -> None:
    order = [S.ASSIGNED, S.BUILDING, S.RUNNING]
    for present in order:
        decision = decide(report(state), task(present, attempt(present)))
        forward = state in order and order.index(state) >= order.index(present)
        ends = state in TERMINAL & ATTEMPT_STATES
        assert (decision == IgnoredReport("regression")) is not (forward or ends)


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_ended_attempt_is_released_only_by_an_end_report_with_gone(state: S) -> None:
    facts = task(S.PENDING, attempt(S.FAILED))
    assert decide(report(S.FAILED), facts) == IgnoredReport("already_ended")
    assert decide(report(state, gone=True), facts) == IgnoredReport("already_ended")
    change = changed(report(S.FAILED, gone=True), facts)
    assert (change.steps[0].reason, change.at) == (Reason.RELEASED, NOW)


def test_report_for_a_task_that_already_ended_is_ignored_as_illegal() -> None:
    assert decide(report(S.SUCCEEDED), task(S.KILLED, attempt())) == IgnoredReport("illegal")


# Facts.


def test_every_field_of_a_report_is_written_to_the_attempt() -> None:
    incoming = report(
        S.FAILED,
        seq=12,
        phase="creating",
        progress=40,
        container_id="c",
        exit_code=3,
        failure_kind=FailureKind.USER,
        reason="exit",
        message="told",
        result="r",
        result_truncated=True,
        usage={"cpu_seconds": 1},
        started_at=EPOCH + 2,
        finished_at=EPOCH + 5,
        gone=True,
    )
    assert written(incoming) == ChangeAttempt(
        uid=UID,
        state_from=S.RUNNING,
        state_to=S.FAILED,
        charged=RetryBudget.FAILURE,
        charge=1,
        report_seq=12,
        phase="creating",
        progress=40,
        container_id="c",
        exit_code=3,
        failure_kind=FailureKind.USER,
        reason=Reason.EXIT_STATUS,
        message="told",
        result="r",
        result_truncated=True,
        usage={"cpu_seconds": 1},
        started_at=CREATED + 2 * SECOND,
        finished_at=CREATED + 5 * SECOND,
        release=ReleaseKind.CONFIRMED,
    )


def test_repeated_state_updates_attempt_fields_and_leaves_the_task() -> None:
    facts = task(S.BUILDING, attempt(S.BUILDING, phase="pulling"), counters=Counters(1, 2, 3))
    change = changed(report(S.BUILDING, phase="creating"), facts)
    assert (change.job_id, change.group_id, change.task_id, change.at) == (1, 2, 3, NOW)
    assert (change.task_from, change.task_to) == (S.BUILDING, S.BUILDING)
    assert (change.counters, change.attempt_open) == (Counters(1, 2, 3), True)
    (step,) = change.steps
    assert (step.task_from, step.task_to, step.attempt_state) == (S.BUILDING,) * 3
    assert (step.reason, step.at, step.message) == (Reason.BUILDING, NOW, "creating")
    assert changed(report(S.BUILDING), facts).steps == ()
    noted = written(report(S.BUILDING, reason="slow", message="told"), facts)
    assert (noted.reason, noted.message) == ("slow", "told")
    again = written(report(S.BUILDING), facts)
    assert (again.state_from, again.state_to, again.report_seq) == (S.BUILDING, S.BUILDING, 11)


@pytest.mark.parametrize(
    ("reported", "written_as"), [(None, NOW), (5, CREATED + 5 * SECOND), (-5, CREATED), (500, NOW)]
)
def test_reported_start_is_clamped_between_creation_and_now(
    reported: float | None, written_as: object
) -> None:
    at = None if reported is None else EPOCH + reported
    incoming = report(S.RUNNING, started_at=at)
    assert written(incoming, task(S.ASSIGNED, attempt(S.ASSIGNED))).started_at == written_as


def test_a_building_attempt_has_no_start() -> None:
    assert written(report(S.BUILDING), task(S.ASSIGNED, attempt(S.ASSIGNED))).started_at is None


@pytest.mark.parametrize(
    ("started", "reported_start", "reported_end", "expected"),
    [
        (None, None, 5, 5),
        (None, None, -5, 0),
        (None, None, 500, 100),
        (9, None, 5, 9),
        (None, 9, 5, 9),
        (9, 7, 5, 7),
        (7, 9, 5, 7),
        (7, 9, 8, 8),
    ],
)
def test_reported_end_is_clamped_between_earliest_start_and_now(
    started: int | None, reported_start: int | None, reported_end: int, expected: int
) -> None:
    known = None if started is None else CREATED + started * SECOND
    incoming = report(
        S.SUCCEEDED,
        started_at=None if reported_start is None else EPOCH + reported_start,
        finished_at=EPOCH + reported_end,
    )
    facts = task(S.RUNNING, attempt(started_at=known))
    assert written(incoming, facts).finished_at == CREATED + expected * SECOND


# Ends.

PLENTY = RetryLimits(9, 9, 9)
FREE, FAILURE, PREEMPTION, SYSTEM = (
    None,
    RetryBudget.FAILURE,
    RetryBudget.PREEMPTION,
    RetryBudget.SYSTEM,
)


@pytest.mark.parametrize(
    ("incoming", "attempt_state", "budget", "reason"),
    [
        (report(S.SUCCEEDED), S.SUCCEEDED, FREE, Reason.SUCCEEDED),
        (report(S.PREEMPTED), S.PREEMPTED, FREE, Reason.DRAINED),
        (report(S.KILLED, reason="timeout"), S.KILLED, FREE, Reason.TIMEOUT),
        (report(S.KILLED), S.WORKER_FAILED, PREEMPTION, Reason.STOPPED_UNASKED),
        (report(S.WORKER_FAILED), S.WORKER_FAILED, PREEMPTION, Reason.CONTAINER_VANISHED),
        (
            report(S.WORKER_FAILED, reason="refused"),
            S.WORKER_FAILED,
            PREEMPTION,
            Reason.CONTAINER_VANISHED,
        ),
        (
            report(S.WORKER_FAILED, reason="lease_over"),
            S.WORKER_FAILED,
            PREEMPTION,
            Reason.LEASE_OVER,
        ),
        (report(S.FAILED), S.FAILED, FAILURE, Reason.EXIT_STATUS),
        (report(S.FAILED, reason="exit"), S.FAILED, FAILURE, Reason.EXIT_STATUS),
        (report(S.FAILED, reason="oom"), S.FAILED, FAILURE, Reason.OUT_OF_MEMORY),
        (report(S.FAILED, reason="image"), S.FAILED, FAILURE, Reason.IMAGE_ERROR),
        (report(S.FAILED, reason="input"), S.FAILED, FAILURE, Reason.USER_ERROR),
        (
            report(S.FAILED, failure_kind=FailureKind.SYSTEM, reason="oom"),
            S.FAILED,
            SYSTEM,
            Reason.SYSTEM_FAILURE,
        ),
        (
            report(S.FAILED, failure_kind=FailureKind.OUTSIDE, reason="killed_outside"),
            S.WORKER_FAILED,
            PREEMPTION,
            Reason.STOPPED_OUTSIDE,
        ),
        (
            report(S.FAILED, failure_kind=FailureKind.OUTSIDE),
            S.WORKER_FAILED,
            PREEMPTION,
            Reason.CONTAINER_VANISHED,
        ),
    ],
)
@pytest.mark.parametrize("gone", [True, False])
def test_each_kind_of_end_sets_state_budget_and_reason(
    incoming: AttemptReport,
    attempt_state: S,
    budget: RetryBudget | None,
    reason: Reason,
    gone: bool,
) -> None:
    incoming = replace(incoming, gone=gone, message="told")
    end = written(incoming, task(S.RUNNING, attempt(), limits=PLENTY))
    assert (end.state_to, end.charged, end.reason) == (attempt_state, budget, reason)
    assert end.message == "told"
    assert end.release is (ReleaseKind.CONFIRMED if gone else None)


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_refusal_is_accepted_only_for_an_assigned_attempt(state: S) -> None:
    incoming = report(S.WORKER_FAILED, reason="refused", message="full")
    change = changed(incoming, task(state, attempt(state)))
    refused = state is S.ASSIGNED
    assert written(incoming, task(state, attempt(state))).charged is (
        None if refused else PREEMPTION
    )
    step = change.steps[-1]
    assert step.reason is (Reason.REFUSED if refused else Reason.CONTAINER_VANISHED)
    assert step.message == "full"


def test_container_lost_before_the_start_is_not_a_refusal() -> None:
    for reason, reported in ((None, Reason.CONTAINER_VANISHED), ("lease_over", Reason.LEASE_OVER)):
        incoming = report(S.WORKER_FAILED, reason=reason)
        change = changed(incoming, task(S.ASSIGNED, attempt(S.ASSIGNED)))
        assert change.steps[-1].reason is reported


@pytest.mark.parametrize(
    ("incoming", "text"),
    [
        (report(S.FAILED, exit_code=7, message="x"), "exit status 7"),
        (report(S.FAILED, reason="oom", message="x"), REASONS[Reason.OUT_OF_MEMORY]),
        (report(S.FAILED, reason="image", message="no such image"), "no such image"),
        (report(S.FAILED, reason="image"), REASONS[Reason.IMAGE_ERROR]),
        (report(S.FAILED, reason="input", message="no such file"), "no such file"),
        (report(S.FAILED, reason="input"), REASONS[Reason.USER_ERROR]),
    ],
)
def test_failure_reason_uses_the_public_wording(incoming: AttemptReport, text: str) -> None:
    assert changed(incoming).failure_reason == text


def test_only_building_reports_write_their_phase_to_the_history() -> None:
    assigned = task(S.ASSIGNED, attempt(S.ASSIGNED))
    phase = changed(report(S.BUILDING, phase="pulling"), assigned).steps[0]
    assert (phase.reason, phase.message) == (Reason.BUILDING, "pulling")
    assert changed(report(S.BUILDING), assigned).steps[0].message == ""
    started = changed(report(S.RUNNING, phase="creating", message="x"), assigned).steps[0]
    assert (started.reason, started.message) == (Reason.STARTED, "")


@pytest.mark.parametrize(
    ("gone", "never", "state"),
    [
        (True, True, S.PENDING),
        (False, True, S.WORKER_FAILED),
        (True, False, S.WORKER_FAILED),
    ],
)
def test_at_most_once_task_is_requeued_only_if_no_container_was_created(
    gone: bool, never: bool, state: S
) -> None:
    facts = replace(task(S.BUILDING, attempt(S.BUILDING)), at_most_once=True)
    incoming = report(S.WORKER_FAILED, gone=gone, never_created=never)
    assert changed(incoming, facts).task_to is state
