"""S0.1: ten task states with their numbers; the final ones; the component that sets each."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, transaction

from controlplane import clock
from controlplane.commands.attempts.release import release_attempt
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.state.states import Reason
from controlplane.domain.state.transitions import Event
from controlplane.models import Attempt, Task
from tests.scenarios.stage import Stage

NUMBERS = {
    "PENDING": 1,
    "BUILDING": 2,
    "RUNNING": 3,
    "SUCCEEDED": 4,
    "FAILED": 5,
    "KILLED": 6,
    "WORKER_FAILED": 7,
    "UNSCHEDULABLE": 8,
    "ASSIGNED": 9,
    "PREEMPTED": 10,
}


def test_stored_states_have_the_numbers_of_iris(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small()
    seen = {S(stage.task(job).state).name: stage.task(job).state}
    stage.place()
    steps: list[Callable[[Attempt], None]] = [stage.build, stage.start, stage.succeed]
    for step in steps:
        seen[S(stage.task(job).state).name] = stage.task(job).state
        step(stage.last(job))
    seen[S(stage.task(job).state).name] = stage.task(job).state
    assert seen == {name: NUMBERS[name] for name in seen}
    assert list(seen) == ["PENDING", "ASSIGNED", "BUILDING", "RUNNING", "SUCCEEDED"]
    assert {state.name: int(state) for state in S} == NUMBERS


def test_each_transition_names_its_actor(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=2, timeout_seconds=10)
    stage.place()
    first, second = stage.newest(job)
    stage.build(first)
    stage.start(first)
    stage.start(second)
    stage.succeed(first)
    stage.wait(41)
    stage.converge()
    assert stage.history(job) == [
        ("ASSIGNED", "placed", "placement"),
        ("ASSIGNED", "placed", "placement"),
        ("BUILDING", "building", "cell"),
        ("RUNNING", "started", "cell"),
        ("RUNNING", "started", "cell"),
        ("SUCCEEDED", "succeeded", "cell"),
        ("KILLED", "timeout", "convergence"),
    ]


def test_start_time_of_the_program_is_stored(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed()
    assert stage.task(job).started_at is None
    stage.build(attempt)
    assert stage.last(job).started_at is None
    stage.start(attempt)
    assert stage.last(job).started_at == stage.task(job).started_at == stage.job(job).started_at
    assert stage.last(job).started_at is not None


ENDS = {
    S.SUCCEEDED: lambda stage, attempt: stage.succeed(attempt),
    S.FAILED: lambda stage, attempt: stage.fail(attempt),
    S.WORKER_FAILED: lambda stage, attempt: stage.vanish(attempt),
    S.KILLED: lambda stage, attempt: cancel_job(
        job_id=attempt.job_id, reason="", force=False, actor="me", now=clock.now()
    ),
}


@pytest.mark.parametrize("state", ENDS, ids=lambda state: state.name)
def test_terminal_state_is_final_whatever_is_reported_later(stage: Stage, state: S) -> None:
    cell = stage.cell()
    job, attempt = stage.running(retries={"failure": 0, "preemption": 0})
    ENDS[state](stage, attempt)
    ended = stage.task(job)
    assert (ended.state, stage.job(job).state) == (state, state)
    assert ended.finished_at is not None
    stage.start(attempt)
    for other in (S.SUCCEEDED, S.FAILED, S.WORKER_FAILED, S.KILLED):
        stage.end(attempt, other, exit_code=0)
    stage.place()
    stage.lose(cell)
    after = stage.task(job)
    assert (after.state, after.finished_at) == (state, ended.finished_at)
    assert stage.job(job).state == state
    assert len(stage.attempts(job)) == 1
    stage.check()


def test_unspecified_is_never_stored(stage: Stage) -> None:
    job = stage.submit_small()
    assert 0 not in {int(state) for state in S}
    assert stage.job(job).groups.get().counts[0] == 0


def test_database_refuses_a_second_unreleased_attempt(stage: Stage) -> None:
    stage.cell()
    _, attempt = stage.placed()
    duplicate = Attempt.objects.get(pk=attempt.pk)
    duplicate.pk, duplicate.number = "00000000-0000-0000-0000-000000000001", 2
    with pytest.raises(IntegrityError, match="task_has_one_unreleased_attempt"):
        duplicate.save(force_insert=True)


@pytest.mark.parametrize("table", [Task, Attempt])
def test_database_refuses_a_terminal_state_without_a_finish_time(
    stage: Stage, table: type[Task] | type[Attempt]
) -> None:
    stage.cell()
    stage.running()
    with pytest.raises(IntegrityError, match="finished_iff_terminal"), transaction.atomic():
        table.objects.update(state=S.FAILED)


def test_stopped_attempt_holds_capacity_until_its_cell_confirms(stage: Stage) -> None:
    stage.cell(cpu=100)
    job, attempt = stage.running()
    waiting = stage.submit_small()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    stage.place()
    held = stage.last(job)
    assert (held.state, held.released_at, held.release_kind) == (S.KILLED, None, "")
    assert stage.task(job).attempt_open
    assert stage.states(waiting) == ["PENDING"]
    stage.confirm(attempt)
    stage.place()
    assert stage.last(job).release_kind == "confirmed"
    assert stage.last(job).released_at is not None
    assert not stage.task(job).attempt_open
    assert stage.states(waiting) == ["ASSIGNED"]


def test_cell_loss_releases_an_attempt_with_kind_cell_lost(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.running()
    stage.lose(cell)
    lost = stage.last(job)
    assert (lost.state, lost.release_kind) == (S.WORKER_FAILED, "cell_lost")
    assert lost.released_at is not None


def test_operator_can_release_only_ended_attempts(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running(exclusive="strict")

    def release() -> None:
        release_attempt(uid=attempt.uid, reason="I looked", actor="olga", now=clock.now())

    with pytest.raises(Conflict, match="is RUNNING"):
        release()
    stage.lose(cell)
    release()
    assert stage.last(job).release_kind == "operator"
    assert stage.history(job)[-1][1:] == ("released_by_operator", "olga")
    stage.cell("other")
    stage.place()
    assert [row.number for row in stage.attempts(job)] == [1, 2]
    with pytest.raises(Conflict, match="is released already"):
        release()


@pytest.mark.parametrize(
    ("stands", "event", "becomes", "attempt", "job_is"),
    [
        ("PENDING", Event.CACHE_HIT, "SUCCEEDED", None, "SUCCEEDED"),
        ("PENDING", Event.REJECTED, "UNSCHEDULABLE", None, "UNSCHEDULABLE"),
        ("RUNNING", Event.HEALTH_FAILED, "PENDING", "FAILED", "RUNNING"),
        ("ASSIGNED", Event.PREEMPTED, "PENDING", "PREEMPTED", "PENDING"),
    ],
    ids=lambda value: str(value),
)
def test_events_change_the_rows_as_in_the_transition_table(
    stage: Stage, stands: str, event: Event, becomes: str, attempt: str | None, job_is: str
) -> None:
    stage.cell()
    job = stage.submit_small()
    if stands != "PENDING":
        stage.place()
    if stands == "RUNNING":
        stage.start(stage.last(job))
    stage.force(job, event, Reason.REJECTED)
    assert (stage.states(job), stage.state(job)) == ([becomes], job_is)
    assert [S(row.state).name for row in stage.attempts(job)] == ([attempt] if attempt else [])
    assert stage.counters(job) == (0, 0, 0)
