"""S1.2: the history of phases is only ever added to: the whole timeline of an execution."""

from itertools import pairwise
from typing import Any

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.phases import PhaseChange, PhaseKind
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Transition
from tests.scenarios.stage import Stage


def lines(job: Job) -> list[dict[str, Any]]:
    return [{**row} for row in Transition.objects.filter(job_id=job.pk).order_by("id").values()]


def test_every_state_change_and_phase_is_a_separate_history_row(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed()
    stage.build(attempt, phase=Phase.PULLING)
    stage.build(attempt, phase=Phase.PULLING, progress=50)
    stage.build(attempt, phase=Phase.PREPARING)
    stage.build(attempt, phase=Phase.CREATING)
    stage.start(attempt)
    stage.succeed(attempt)
    found = [
        (S(row["from_state"]).name, S(row["to_state"]).name, row["reason"], row["message"])
        for row in lines(job)
        if row["task_id"]
    ]
    assert found == [
        ("PENDING", "ASSIGNED", "placed", ""),
        ("ASSIGNED", "BUILDING", "building", "pulling"),
        ("BUILDING", "BUILDING", "building", "preparing"),
        ("BUILDING", "BUILDING", "building", "creating"),
        ("BUILDING", "RUNNING", "started", ""),
        ("RUNNING", "SUCCEEDED", "succeeded", ""),
    ]


def passed(attempt: Attempt, *kinds_and_texts: tuple[PhaseKind, str]) -> tuple[PhaseChange, ...]:
    """Changes of phase, one each tenth of a second since the attempt's creation."""
    began = attempt.created_at.timestamp()
    return tuple(
        PhaseChange(number, began + number / 10, kind, text)
        for number, (kind, text) in enumerate(kinds_and_texts, 1)
    )


STORY = (
    (PhaseKind.PHASE, "preparing"),
    (PhaseKind.PHASE, "pulling"),
    (PhaseKind.TRY, "try 1 of 3 failed: pull: connection refused"),
    (PhaseKind.PHASE, "creating"),
    (PhaseKind.RUNNER, "warming"),
    (PhaseKind.RUNNER, "step 1"),
)


def test_short_phases_and_runner_phases_have_their_own_times(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed()
    stage.wait(3)
    stage.end(attempt, S.SUCCEEDED, exit_code=0, phases=passed(attempt, *STORY))
    reported = [row for row in lines(job) if row["attempt_uid"]][1:-1]
    assert [(row["message"], row["reason"]) for row in reported] == [
        ("preparing", "building"),
        ("pulling", "building"),
        ("try 1 of 3 failed: pull: connection refused", "try_failed"),
        ("creating", "building"),
        ("warming", "runner_phase"),
        ("step 1", "runner_phase"),
    ]
    seconds = [(row["at"] - attempt.created_at).total_seconds() for row in reported]
    assert [round(after, 3) for after in seconds] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def test_repeated_phase_reports_add_no_history(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed()
    stage.wait(3)
    story = passed(attempt, *STORY)
    for count in (2, 2, 4, 3, 6):
        stage.build(attempt, phase=Phase.CREATING, phases=story[:count])
    stage.end(attempt, S.SUCCEEDED, exit_code=0, phases=story)
    reported = [row["message"] for row in lines(job) if row["attempt_uid"]][1:-1]
    assert reported == [text for _, text in STORY]


def test_history_rows_are_never_changed(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.placed(retries={"failure": 2})
    seen: list[dict[str, Any]] = lines(job)
    for happens in (stage.start, stage.fail):
        happens(stage.last(job))
        assert lines(job)[: len(seen)] == seen
        seen = lines(job)
    stage.wait(5)
    stage.place()
    stage.lose(cell)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    stage.settle()
    assert lines(job)[: len(seen)] == seen
    assert len(lines(job)) > len(seen)


def test_transitions_of_a_task_are_contiguous(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.running(retries={"failure": 1})
    stage.fail(stage.last(job))
    stage.wait(2)
    stage.place()
    stage.build(stage.last(job))
    stage.lose(cell)
    stage.settle()
    found = [row for row in lines(job) if row["task_id"]]
    assert found[0]["from_state"] == S.PENDING
    for earlier, later in pairwise(found):
        assert earlier["to_state"] == later["from_state"]
        assert earlier["at"] <= later["at"]
    assert found[-1]["to_state"] == stage.task(job).state


def test_each_history_row_names_its_attempt(stage: Stage) -> None:
    stage.cell()
    job, first = stage.running(retries={"failure": 1})
    stage.fail(first)
    stage.wait(2)
    stage.place()
    second = stage.last(job)
    found = [row["attempt_uid"] for row in lines(job) if row["task_id"]]
    assert found == [first.uid, first.uid, first.uid, second.uid]


def test_run_reported_in_one_report_has_its_start_in_the_history(
    stage: Stage,
) -> None:
    stage.cell()
    job, attempt = stage.placed()
    began = stage.now()
    stage.wait(3)
    at = began.timestamp()
    stage.end(attempt, S.SUCCEEDED, exit_code=0, started_at=at, finished_at=at + 2)
    started, ended = [row for row in lines(job) if row["task_id"]][-2:]
    assert (started["to_state"], ended["to_state"]) == (S.RUNNING, S.SUCCEEDED)
    assert abs((started["at"] - began).total_seconds()) < 0.001
    assert stage.last(job).started_at == started["at"]


def test_release_of_a_stopped_attempt_is_recorded(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    stage.confirm(attempt)
    assert [(to, reason) for to, reason, _ in stage.history(job)][-2:] == [
        ("KILLED", "cancelled"),
        ("KILLED", "released"),
    ]


def test_job_transitions_are_recorded(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed()
    stage.succeed(attempt)
    own = [
        (row["reason"], S(row["to_state"]).name, row["actor"])
        for row in lines(job)
        if row["task_id"] is None
    ]
    assert own[0] == ("submitted", "PENDING", "owner")
    assert [state for _, state, _ in own] == ["PENDING", "RUNNING", "SUCCEEDED"]


def test_ignored_report_adds_no_history(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    stage.succeed(attempt)
    before = lines(job)
    stage.fail(attempt)
    stage.start(attempt)
    assert lines(job) == before
