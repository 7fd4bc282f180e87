"""S2.5: fields of a completed task: failed, reason, result, annotation, cell, times."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt
from controlplane.queries.views.tasks import get_task
from tests.scenarios.diego import cancel, completed, desire, fetch, running
from tests.scenarios.stage import BEGIN, Stage

LIMIT = 10_240


def test_result_is_returned_only_for_a_succeeded_task(stage: Stage) -> None:
    stage.cell()
    good, bad = running(stage, "good"), running(stage, "bad")
    stage.end(good, S.SUCCEEDED, exit_code=0, result="42")
    stage.end(bad, S.FAILED, exit_code=1, result="42")
    task = fetch(stage, "good")
    assert (task["failed"], task["result"], task["result_truncated"]) == (False, "42", False)
    assert (task["failure_reason"], task["exit_code"]) == ("", 0)
    task = fetch(stage, "bad")
    assert (task["failed"], task["result"], task["failure_reason"]) == (
        True,
        None,
        "exit status 1",
    )


def test_large_result_is_returned_truncated(stage: Stage) -> None:
    stage.cell()
    attempt = running(stage)
    stage.end(attempt, S.SUCCEEDED, exit_code=0, result="x" * LIMIT, result_truncated=True)
    task = fetch(stage)
    assert (len(task["result"]), task["result_truncated"], task["failed"]) == (LIMIT, True, False)


ENDS: dict[str, Callable[[Stage, Attempt], None]] = {
    "exit status 3": lambda stage, attempt: stage.end(attempt, S.FAILED, exit_code=3),
    "out of memory": lambda stage, attempt: stage.end(
        attempt, S.FAILED, exit_code=137, reason="oom"
    ),
    "task was cancelled": lambda stage, attempt: cancel(stage),
    "cell disappeared before completion": lambda stage, attempt: stage.lose(
        stage.fake_cell_of(attempt)
    ),
    "its container vanished": lambda stage, attempt: stage.vanish(attempt),
    "exceeded its time limit": lambda stage, attempt: stage.end(
        attempt, S.KILLED, reason="timeout"
    ),
    "the cell's engine, registry or disk failed": lambda stage, attempt: stage.fail_system(attempt),
    "moved away because its cell is being drained": lambda stage, attempt: stage.end(
        attempt, S.PREEMPTED
    ),
}


@pytest.mark.parametrize("reason", ENDS)
def test_each_failure_cause_has_one_reason_text(stage: Stage, reason: str) -> None:
    stage.cell()
    attempt = running(stage)
    ENDS[reason](stage, attempt)
    task = fetch(stage)
    assert (task["lifecycle"], task["failed"]) == ("COMPLETED", True)
    assert task["failure_reason"] == reason


def test_annotation_is_returned_unchanged(stage: Stage) -> None:
    desire(stage, annotation='{"build": "ü"}')
    assert fetch(stage)["annotation"] == '{"build": "ü"}'


def test_cell_is_returned_during_and_after_the_run(stage: Stage) -> None:
    stage.cell()
    job = desire(stage)
    assert fetch(stage)["cell_id"] is None
    stage.place()
    stage.start(stage.last(job))
    assert fetch(stage)["cell_id"] == "cell-1"
    stage.succeed(stage.last(job))
    assert fetch(stage)["cell_id"] == "cell-1"


def test_times_are_returned_as_nanoseconds_in_whole_microseconds(stage: Stage) -> None:
    stage.cell()
    job = desire(stage)
    assert fetch(stage)["first_completed_at_ns"] is None
    stage.wait(7)
    stage.place()
    stage.succeed(stage.last(job))
    task = fetch(stage)
    begin = int(BEGIN.timestamp()) * 1_000_000_000
    for name in ("created_at", "updated_at", "first_completed_at"):
        nanoseconds = task[f"{name}_ns"]
        assert isinstance(nanoseconds, int)
        assert nanoseconds % 1_000 == 0
        assert BEGIN + timedelta(microseconds=(nanoseconds - begin) // 1_000) == task[name]
    assert task["created_at_ns"] < task["first_completed_at_ns"] <= task["updated_at_ns"]


def test_first_completion_time_does_not_change(stage: Stage) -> None:
    stage.cell()
    attempt = running(stage)
    cancel(stage)
    before = fetch(stage)["first_completed_at_ns"]
    stage.wait(5)
    stage.confirm(attempt)
    after = fetch(stage)
    assert after["first_completed_at_ns"] == before
    assert after["updated_at_ns"] >= before


def test_ordinary_task_has_the_same_fields_under_its_id(stage: Stage) -> None:
    stage.cell()
    completed(stage)
    job, attempt = stage.running()
    stage.succeed(attempt)
    one_off, ordinary = fetch(stage), get_task(stage.task(job).pk, now=stage.now())
    assert set(one_off) == set(ordinary)
    assert (ordinary["guid"], ordinary["domain"]) == (str(ordinary["id"]), None)
    assert (ordinary["lifecycle"], ordinary["failed"]) == ("COMPLETED", False)
