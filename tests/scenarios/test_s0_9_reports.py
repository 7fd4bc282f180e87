"""S0.9: late, repeated, unordered or wrong reports change nothing; all are acknowledged."""

from dataclasses import replace
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import AttemptReport, Reports
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import envelope, keys
from controlplane.models import Attempt, Job, Task, Transition
from tests.scenarios.stage import Stage

UNKNOWN_UID = "00000000-0000-0000-0000-00000000dead"


def rows(job: Job) -> list[Any]:
    """Everything that could have changed."""
    tasks = Task.objects.filter(job=job).order_by("id").values()
    attempts = Attempt.objects.filter(job=job).order_by("uid").values()
    changes = Transition.objects.filter(job_id=job.pk).order_by("id").values()
    return [*tasks, *attempts, *changes, *Job.objects.filter(pk=job.pk).values()]


def report_of(attempt: Attempt, seq: int, state: S, **facts: Any) -> AttemptReport:
    return AttemptReport(str(attempt.uid), seq, state, **facts)


def test_pending_report_does_not_revert_an_assigned_task(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed()
    before = rows(job)
    assert stage.receive(cell, report_of(attempt, 50, S.PENDING)) == {"regression": 1}
    assert rows(job) == before


@pytest.mark.parametrize(
    ("first", "then"),
    [("RUNNING", "BUILDING"), ("RUNNING", "ASSIGNED"), ("BUILDING", "ASSIGNED")],
)
def test_report_of_an_earlier_state_is_ignored(stage: Stage, first: str, then: str) -> None:
    cell = stage.cell()
    job, attempt = stage.placed()
    stage.receive(cell, report_of(attempt, 50, S[first]))
    before = rows(job)
    assert stage.receive(cell, report_of(attempt, 51, S[then])) == {"regression": 1}
    assert rows(job) == before


@pytest.mark.parametrize("state", [S.PENDING, S.UNSCHEDULABLE], ids=lambda state: state.name)
def test_report_of_an_invalid_attempt_state_is_ignored(stage: Stage, state: S) -> None:
    cell = stage.cell()
    job, attempt = stage.running()
    before = rows(job)
    assert stage.receive(cell, report_of(attempt, 50, state, gone=True)) == {"regression": 1}
    assert rows(job) == before


def test_unknown_attempt_is_ignored_and_stopped_by_the_next_sync(
    stage: Stage,
) -> None:
    cell = stage.cell()
    assert stage.receive(cell, AttemptReport(UNKNOWN_UID, 1, S.RUNNING)) == {"unknown_attempt": 1}
    ghost = Attempt(uid=UNKNOWN_UID, state=S.RUNNING)
    assert [stop.uid for stop in cell.beat(ghost).orders.stops] == [UNKNOWN_UID]


def test_report_of_another_cell_is_ignored(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    other = stage.cell("cell-2")
    before = rows(job)
    assert stage.receive(other, report_of(attempt, 99, S.SUCCEEDED, gone=True)) == {
        "other_incarnation": 1
    }
    assert rows(job) == before


def test_report_of_another_incarnation_is_ignored(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running()
    before = rows(job)
    cell.incarnation = "two"
    assert stage.receive(cell, report_of(attempt, 99, S.SUCCEEDED, gone=True)) == {
        "other_incarnation": 1
    }
    assert rows(job) == before


@pytest.mark.parametrize("seq", [49, 50])
def test_a_report_that_is_not_newer_is_ignored(stage: Stage, seq: int) -> None:
    cell = stage.cell()
    job, attempt = stage.placed()
    stage.receive(cell, report_of(attempt, 50, S.RUNNING))
    before = rows(job)
    assert stage.receive(cell, report_of(attempt, seq, S.SUCCEEDED, gone=True)) == {"not_newer": 1}
    assert rows(job) == before


def test_newest_report_counts_in_any_order_of_arrival(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed()
    stage.receive(cell, report_of(attempt, 52, S.SUCCEEDED, exit_code=0, gone=True))
    stage.receive(cell, report_of(attempt, 51, S.RUNNING))
    stage.receive(cell, report_of(attempt, 50, S.BUILDING))
    assert stage.states(job) == ["SUCCEEDED"]


def test_report_guards_apply_in_order(stage: Stage) -> None:
    """A report that every guard would refuse is refused by the first; and so on."""
    cell = stage.cell()
    other = stage.cell("cell-2")
    job, attempt = stage.placed()
    stage.receive(cell, report_of(attempt, 50, S.FAILED, exit_code=1, gone=True))
    before = rows(job)
    worst = report_of(attempt, 1, S.PENDING)
    assert stage.receive(other, replace(worst, uid=UNKNOWN_UID)) == {"unknown_attempt": 1}
    assert stage.receive(other, worst) == {"other_incarnation": 1}
    assert stage.receive(cell, worst) == {"not_newer": 1}
    assert stage.receive(cell, replace(worst, seq=51)) == {"already_ended": 1}
    assert rows(job) == before


def test_ended_attempt_accepts_only_its_release_and_missing_facts(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    killed = stage.last(job)
    assert (killed.state, killed.released_at, killed.exit_code) == (S.KILLED, None, None)
    assert stage.receive(cell, report_of(attempt, 60, S.RUNNING)) == {"already_ended": 1}
    assert stage.last(job).released_at is None
    usage = {"cpu_seconds": 3}
    stage.receive(cell, report_of(attempt, 61, S.SUCCEEDED, exit_code=0, usage=usage, gone=True))
    reported = stage.last(job)
    assert (reported.state, reported.exit_code, reported.usage) == (S.KILLED, 0, usage)
    assert (reported.release_kind, reported.finished_at) == ("confirmed", killed.finished_at)
    assert stage.states(job) == ["KILLED"]
    before = rows(job)
    again = report_of(attempt, 62, S.FAILED, exit_code=9, usage={}, gone=True)
    assert stage.receive(cell, again) == {"already_ended": 1}
    assert rows(job) == before


def test_same_state_report_updates_progress_and_records_new_phases(
    stage: Stage,
) -> None:
    cell = stage.cell()
    job, attempt = stage.placed()

    def lines() -> int:
        return len(stage.history(job))

    stage.receive(cell, report_of(attempt, 50, S.BUILDING, phase=Phase.PULLING, progress=10))
    before = lines()
    stage.receive(cell, report_of(attempt, 51, S.BUILDING, phase=Phase.PULLING, progress=80))
    assert (stage.last(job).progress, lines()) == (80, before)
    stage.receive(cell, report_of(attempt, 52, S.BUILDING, phase=Phase.CREATING))
    assert (stage.last(job).phase, lines()) == ("creating", before + 1)
    assert stage.states(job) == ["BUILDING"]


def test_building_may_be_skipped(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed()
    stage.receive(cell, report_of(attempt, 50, S.RUNNING))
    assert stage.states(job) == ["RUNNING"]


@pytest.mark.parametrize("begun", ["placed", "built", "running"])
def test_end_report_without_earlier_reports_is_accepted(stage: Stage, begun: str) -> None:
    stage.cell()
    job, attempt = stage.placed()
    if begun == "built":
        stage.build(attempt)
    elif begun == "running":
        stage.start(attempt)
    stage.end(attempt, S.SUCCEEDED, exit_code=0, started_at=clock.now().timestamp())
    assert stage.states(job) == ["SUCCEEDED"]
    assert [to for to, _, _ in stage.history(job)][-2:] == ["RUNNING", "SUCCEEDED"]


def test_every_report_is_acknowledged_and_the_ignored_ones_are_counted(stage: Stage) -> None:
    cell = stage.cell()
    _, attempt = stage.running()
    cell.report(
        report_of(attempt, 0, S.PENDING),
        AttemptReport(UNKNOWN_UID, 0, S.RUNNING),
        report_of(attempt, 0, S.BUILDING),
    )
    assert cell.beat(attempt).acked == cell.last_report
    # The newest of one batch speaks for its attempt.
    assert stage.inbox.ignored == {"stale": 0, "unknown_attempt": 1, "regression": 1}


def test_repeated_batch_changes_nothing(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running(retries={"failure": 3})
    stage.fail(attempt)
    before = rows(job)
    cell.send(
        Reports(0, (report_of(attempt, cell.last_report, S.FAILED, exit_code=1, gone=True),)).body()
    )
    assert rows(job) == before


def test_report_not_signed_with_the_cell_key_is_dropped(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running()
    before = rows(job)
    cell.key = keys.decode_key(keys.encode_key(bytes(32)))
    cell.report(report_of(attempt, 0, S.SUCCEEDED, exit_code=0, gone=True))
    assert (stage.inbox.dropped.total(), rows(job)) == (1, before)


def test_message_signed_by_another_cell_is_dropped(stage: Stage) -> None:
    cell = stage.cell()
    other = stage.cell("cell-2")
    job, attempt = stage.running()
    before = rows(job)
    forged = envelope.seal(
        keys.mac_key(other.key, keys.TO_CONTROL),
        cell=cell.name,
        incarnation=cell.incarnation,
        seq=99,
        body=Reports(0, (report_of(attempt, 99, S.SUCCEEDED, gone=True),)).body(),
    )
    stage.inbox.apply([forged])
    assert (stage.inbox.dropped.total(), rows(job)) == (1, before)


def test_reported_times_are_clamped_between_creation_and_now(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed()
    stage.wait(100)
    stage.end(attempt, S.SUCCEEDED, exit_code=0, started_at=1.0, finished_at=9e9)
    reported = stage.last(job)
    assert reported.started_at == reported.created_at
    assert reported.finished_at is not None
    assert 100 <= (reported.finished_at - reported.created_at).total_seconds() < 101
