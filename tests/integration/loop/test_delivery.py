"""What is delivered at most once, and what is exclusive: when it may run again, and when never."""

from datetime import timedelta

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.models import Alert, Attempt, Cell, CellLease, Job, Task
from controlplane.queries.integrity.invariants import check_all
from tests.integration.loop.conftest import FakeCell, Loop


def placed(loop: Loop, **body: object) -> tuple[FakeCell, Job, Attempt]:
    cell = loop.cell()
    job = loop.submit(**body)
    loop.place()
    (attempt,) = loop.attempts(job)
    return cell, job, attempt


def lose(loop: Loop) -> None:
    over = clock.now() - timedelta(seconds=1)
    CellLease.objects.update(expires_at=over, last_message_at=over, silent_ticks=3)
    loop.converge()
    assert Cell.objects.get().state == "LOST"


@pytest.mark.parametrize(
    ("state", "facts", "ends"),
    [
        (S.WORKER_FAILED, {"reason": "refused"}, "FAILED"),
        (S.WORKER_FAILED, {"reason": "vanished", "started_at": 1.0}, "WORKER_FAILED"),
        (S.FAILED, {"failure_kind": FailureKind.SYSTEM, "reason": "engine"}, "FAILED"),
        (S.FAILED, {"exit_code": 1, "started_at": 1.0}, "FAILED"),
        (S.PREEMPTED, {}, "PREEMPTED"),
    ],
)
def test_end_of_an_at_most_once_task_with_a_container_is_final(
    loop: Loop, state: S, facts: dict[str, object], ends: str
) -> None:
    cell, job, attempt = placed(loop, delivery="at_most_once")
    cell.end(attempt, state, **facts)
    assert loop.states(job) == [ends]
    assert check_all() == []


@pytest.mark.parametrize(
    ("state", "facts"),
    [
        (S.WORKER_FAILED, {"reason": "refused"}),
        (S.FAILED, {"failure_kind": FailureKind.SYSTEM, "reason": "registry"}),
        (S.PREEMPTED, {}),
    ],
)
def test_at_most_once_attempt_without_a_container_is_retried(
    loop: Loop, state: S, facts: dict[str, object]
) -> None:
    cell, job, attempt = placed(loop, delivery="at_most_once")
    cell.end(attempt, state, never_created=True, **facts)
    assert loop.states(job) == ["PENDING"]
    assert check_all() == []


def test_unanswered_at_most_once_order_waits_for_a_report_of_its_cell(loop: Loop) -> None:
    cell, job, attempt = placed(loop, delivery="at_most_once")
    ordinary = loop.submit()
    loop.place()
    Attempt.objects.update(start_before=clock.now() - timedelta(seconds=1))
    loop.converge()
    assert (loop.states(job), loop.states(ordinary)) == (["ASSIGNED"], ["PENDING"])
    cell.end(attempt, S.WORKER_FAILED, reason="refused", never_created=True)
    assert loop.states(job) == ["PENDING"]


def test_at_most_once_task_of_a_lost_cell_is_not_retried(loop: Loop) -> None:
    _, job, _ = placed(loop, delivery="at_most_once")
    lose(loop)
    assert (loop.states(job), loop.state(job)) == (["WORKER_FAILED"], "WORKER_FAILED")
    assert check_all() == []


def test_exclusive_attempt_is_released_ten_seconds_after_cell_loss(loop: Loop) -> None:
    _, job, attempt = placed(loop, exclusive=True)
    lose(loop)
    attempt.refresh_from_db()
    assert loop.states(job) == ["PENDING"]
    assert (attempt.state, attempt.released_at) == (S.WORKER_FAILED, None)
    assert attempt.releasable_at is not None
    assert attempt.finished_at is not None
    assert attempt.releasable_at - attempt.finished_at == timedelta(seconds=10)
    loop.converge()
    assert Task.objects.get().attempt_open
    Attempt.objects.update(releasable_at=clock.now())
    loop.converge()
    attempt.refresh_from_db()
    assert (attempt.release_kind, Task.objects.get().attempt_open) == ("cell_lost", False)
    assert check_all() == []


def test_stopping_exclusive_attempt_is_released_after_the_same_delay(loop: Loop) -> None:
    _, job, attempt = placed(loop, exclusive=True)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    lose(loop)
    attempt.refresh_from_db()
    assert (attempt.state, attempt.released_at) == (S.KILLED, None)
    assert attempt.releasable_at is not None
    Attempt.objects.update(releasable_at=clock.now())
    loop.converge()
    assert Job.objects.get().settled_at is not None


def test_strictly_exclusive_attempt_of_a_lost_cell_is_held_with_an_alert(loop: Loop) -> None:
    _, job, attempt = placed(loop, exclusive="strict")
    lose(loop)
    Attempt.objects.update(finished_at=clock.now())
    for _ in range(3):
        loop.converge()
    attempt.refresh_from_db()
    assert (loop.states(job), attempt.released_at) == (["PENDING"], None)
    alert = Alert.objects.get(kind="exclusive_held")
    assert str(attempt.uid) in alert.subject
    assert check_all() == []


def test_stopping_strictly_exclusive_attempt_is_held_with_an_alert(loop: Loop) -> None:
    cell, job, attempt = placed(loop, exclusive="strict")
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    lose(loop)
    attempt.refresh_from_db()
    assert (attempt.state, attempt.released_at) == (S.KILLED, None)
    alert = Alert.objects.get(kind="exclusive_held")
    assert (alert.subject, alert.cleared_at) == (f"attempt {attempt.uid}", None)
    loop.converge()
    assert Alert.objects.filter(kind="exclusive_held").count() == 1
    cell.end(attempt, S.KILLED, reason="stopped")
    loop.converge()
    assert Alert.objects.get(kind="exclusive_held").cleared_at is not None


def test_late_report_of_a_lost_cell_releases_a_strict_attempt(loop: Loop) -> None:
    cell, _, attempt = placed(loop, exclusive="strict")
    lose(loop)
    cell.end(attempt, S.KILLED, reason="stopped")
    attempt.refresh_from_db()
    assert attempt.release_kind == "confirmed"
    loop.converge()
    assert Alert.objects.get(kind="exclusive_held").cleared_at is not None
    assert not Task.objects.get().attempt_open
