"""Reports: the guards in their order, and what each kind of end is called."""

from datetime import timedelta

import pytest

from controlplane.contract.states import FailureKind, TaskState
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.reports import IgnoredReport, ReportSender, decide_report
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import ACTIVE, Reason, ReleaseKind, RetryBudget
from controlplane.domain.state.transitions import RetryLimits
from tests.harness.domain.facts import CREATED, NOW, SENDER, attempt, report, task


def changed(facts: TaskFacts, incoming: object, sender: ReportSender = SENDER) -> ChangeTask:
    decision = decide_report(facts, incoming, sender, now=NOW)  # type: ignore[arg-type]
    assert isinstance(decision, ChangeTask), decision
    return decision


def ignored(facts: TaskFacts | None, incoming: object, sender: ReportSender = SENDER) -> str:
    decision = decide_report(facts, incoming, sender, now=NOW)  # type: ignore[arg-type]
    assert isinstance(decision, IgnoredReport), decision
    return decision.why


def test_an_unknown_attempt_is_ignored() -> None:
    assert ignored(None, report(S.RUNNING)) == "unknown_attempt"


@pytest.mark.parametrize("sender", [ReportSender(6, "one"), ReportSender(5, "two")])
def test_report_from_another_cell_or_incarnation_is_ignored(sender: ReportSender) -> None:
    facts = task(S.RUNNING, attempt())
    assert ignored(facts, report(S.SUCCEEDED), sender) == "other_incarnation"


@pytest.mark.parametrize("seq", [9, 10])
def test_a_report_that_is_not_newer_is_ignored(seq: int) -> None:
    assert ignored(task(S.RUNNING, attempt()), report(S.SUCCEEDED, seq=seq)) == "not_newer"


def test_an_attempt_that_ended_stays_ended() -> None:
    facts = task(S.KILLED, attempt(S.KILLED))
    assert ignored(facts, report(S.SUCCEEDED, exit_code=0)) == "already_ended"


def test_an_attempt_that_ended_is_released_once_its_container_is_gone() -> None:
    facts = task(S.KILLED, attempt(S.KILLED))
    change = changed(facts, report(S.KILLED, exit_code=143, gone=True))
    assert change.task_to is S.KILLED
    assert change.attempt is not None
    assert change.attempt.state_to is S.KILLED
    assert change.attempt.release is ReleaseKind.CONFIRMED
    assert change.attempt.exit_code == 143
    assert change.attempt_open is False


def test_a_running_report_never_releases() -> None:
    facts = task(S.KILLED, attempt(S.KILLED))
    assert ignored(facts, report(S.RUNNING, gone=True)) == "already_ended"


def test_a_released_attempt_is_not_released_again() -> None:
    facts = task(S.KILLED, attempt(S.KILLED, released_at=NOW))
    assert ignored(facts, report(S.KILLED, gone=True)) == "already_ended"


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_pending_never_regresses_an_active_task(state: TaskState) -> None:
    facts = task(state, attempt(state))
    assert ignored(facts, report(S.PENDING)) == "regression"


def test_building_never_regresses_a_running_task() -> None:
    assert ignored(task(S.RUNNING, attempt()), report(S.BUILDING)) == "regression"


def test_repeated_state_only_updates_attempt_fields() -> None:
    facts = task(S.BUILDING, attempt(S.BUILDING, phase="pulling"))
    change = changed(facts, report(S.BUILDING, phase="creating", progress=40))
    assert change.task_to is change.task_from
    assert change.attempt is not None
    assert change.attempt.progress == 40
    assert [step.message for step in change.steps] == ["creating"]


def test_repeated_phase_adds_no_history() -> None:
    facts = task(S.BUILDING, attempt(S.BUILDING, phase="pulling"))
    assert changed(facts, report(S.BUILDING, phase="pulling", progress=41)).steps == ()


def test_report_from_start_to_end_writes_both_history_rows() -> None:
    facts = task(S.ASSIGNED, attempt(S.ASSIGNED))
    started = CREATED.timestamp() + 5
    incoming = report(
        S.SUCCEEDED, exit_code=0, started_at=started, finished_at=started + 1, gone=True
    )
    change = changed(facts, incoming)
    assert [(step.task_from, step.task_to) for step in change.steps] == [
        (S.ASSIGNED, S.RUNNING),
        (S.RUNNING, S.SUCCEEDED),
    ]
    assert change.started_at == CREATED + timedelta(seconds=5)
    assert change.attempt is not None
    assert change.attempt.release is ReleaseKind.CONFIRMED


def test_start_reported_by_a_cell_is_clamped_between_creation_and_now() -> None:
    facts = task(S.ASSIGNED, attempt(S.ASSIGNED))
    early = changed(facts, report(S.RUNNING, started_at=0.0))
    late = changed(facts, report(S.RUNNING, started_at=NOW.timestamp() + 999))
    assert (early.started_at, late.started_at) == (CREATED, NOW)


@pytest.mark.parametrize(("reported", "ended"), [(5, 6), (12, 9)])
def test_an_end_is_never_before_the_earliest_start(reported: int, ended: int) -> None:
    facts = task(S.RUNNING, attempt(started_at=CREATED + timedelta(seconds=9)))
    engine = CREATED.timestamp()
    incoming = report(
        S.SUCCEEDED, exit_code=0, started_at=engine + reported, finished_at=engine + 6
    )
    change = changed(facts, incoming).attempt
    assert change is not None
    assert change.finished_at == CREATED + timedelta(seconds=ended)


def test_running_report_without_a_start_time_starts_now() -> None:
    assert changed(task(S.ASSIGNED, attempt(S.ASSIGNED)), report(S.RUNNING)).started_at == NOW


@pytest.mark.parametrize(
    ("incoming", "task_state", "reason", "text"),
    [
        (report(S.FAILED, exit_code=1), S.FAILED, Reason.EXIT_STATUS, "exit status 1"),
        (
            report(S.FAILED, exit_code=137, reason="oom", failure_kind=FailureKind.USER),
            S.FAILED,
            Reason.OUT_OF_MEMORY,
            "out of memory",
        ),
        (
            report(S.FAILED, reason="image", message="no such image: x", failure_kind="user"),
            S.FAILED,
            Reason.IMAGE_ERROR,
            "no such image: x",
        ),
        (report(S.KILLED, reason="timeout"), S.KILLED, Reason.TIMEOUT, "exceeded its time limit"),
        (report(S.FAILED, failure_kind=FailureKind.SYSTEM), S.PENDING, Reason.SYSTEM_FAILURE, ""),
        (
            report(S.FAILED, failure_kind=FailureKind.OUTSIDE),
            S.PENDING,
            Reason.CONTAINER_VANISHED,
            "",
        ),
        (
            report(S.FAILED, failure_kind=FailureKind.OUTSIDE, reason="killed_outside"),
            S.PENDING,
            Reason.STOPPED_OUTSIDE,
            "",
        ),
        (report(S.KILLED, reason="stopped"), S.PENDING, Reason.STOPPED_UNASKED, ""),
        (report(S.PREEMPTED), S.PENDING, Reason.DRAINED, ""),
    ],
)
def test_each_kind_of_end_sets_task_state_reason_and_failure_text(
    incoming: object, task_state: S, reason: Reason, text: str
) -> None:
    change = changed(task(S.RUNNING, attempt()), incoming)
    assert change.task_to is task_state
    assert change.steps[-1].reason is reason
    assert change.failure_reason == text


def test_ended_attempt_with_a_remaining_container_is_stopped_and_stays_open() -> None:
    change = changed(task(S.RUNNING, attempt()), report(S.FAILED, exit_code=1))
    assert change.attempt is not None
    assert change.attempt.release is None
    assert change.attempt.stop_reason is Reason.EXIT_STATUS
    assert change.attempt_open is True


def test_refusal_is_free_and_a_lost_container_is_charged() -> None:
    assigned = task(S.ASSIGNED, attempt(S.ASSIGNED))
    refused = changed(assigned, report(S.WORKER_FAILED, reason="refused", gone=True))
    assert refused.attempt is not None
    assert refused.attempt.charged is None
    assert refused.avoid_cell_ids == (SENDER.cell_id,)
    vanished = changed(assigned, report(S.WORKER_FAILED, gone=True))
    assert vanished.attempt is not None
    assert vanished.attempt.charged is RetryBudget.PREEMPTION
    over = changed(assigned, report(S.WORKER_FAILED, reason="lease_over", gone=True))
    assert over.steps[-1].reason is Reason.LEASE_OVER
    lost = changed(
        task(S.RUNNING, attempt(), limits=RetryLimits(preemption=0)),
        report(S.WORKER_FAILED, gone=True),
    )
    assert lost.task_to is S.WORKER_FAILED


def test_runner_can_mark_a_failure_as_final() -> None:
    facts = task(S.RUNNING, attempt(), limits=RetryLimits(failure=3))
    incoming = report(S.FAILED, reason="runner_final", message="no such table", gone=True)
    change = changed(facts, incoming)
    assert (change.task_to, change.failure_reason) == (S.FAILED, "no such table")
    assert change.counters is not None
    assert change.counters.failure == 1
    again = changed(facts, report(S.FAILED, reason="runner", message="bad row", gone=True))
    assert again.task_to is S.PENDING


def test_a_retry_of_a_user_failure_waits() -> None:
    facts = task(S.RUNNING, attempt(), limits=RetryLimits(failure=1))
    change = changed(facts, report(S.FAILED, exit_code=1, gone=True))
    assert change.task_to is S.PENDING
    assert change.not_before is not None
    assert NOW < change.not_before <= NOW + timedelta(seconds=1)
