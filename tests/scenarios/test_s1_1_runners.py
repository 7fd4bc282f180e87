"""S1.1: a task type names its runner, which is called again and again, keeps a state, and aborts.

Source: Flyte, "Task Execution Engine": TaskType "identifies the plugin responsible for the task";
PluginPhase is "the current phase reported by the plugin"; PluginState is where "plugins persist
their internal state between reconciliation loops"; a user failure "increments Attempts", "clears
PluginState" and "invokes the plugin's Abort method", and the task starts fresh.
"""

import pytest

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.domain.state.states import Reason
from controlplane.domain.state.transitions import Event
from controlplane.models import Job, Transition
from tests.conformance.runners import Scripted
from tests.scenarios.cells import LiveStage, RealCell
from workers.runners.interface import (
    AbortResult,
    Context,
    FailureOrigin,
    RunnerObservation,
    RunnerPhase,
)

SOON = 0.02


@pytest.fixture
def runner() -> Scripted:
    """Runs tasks of the type `spark` as the scenario wants it."""
    return Scripted()


@pytest.fixture
def cell(live: LiveStage, runner: Scripted) -> RealCell:
    return live.open_cell("process", runners={"spark": runner})


def submit(live: LiveStage, task_type: str = "spark", **body: object) -> Job:
    return live.submit_small(image=None, task_type=task_type, command=["reindex"], **body)


def counting(context: Context) -> RunnerObservation:
    """Run, and count the calls in the state."""
    return RunnerObservation(
        RunnerPhase.RUNNING, {"n": context.state.get("n", 0) + 1}, poll_seconds=SOON
    )


def test_task_type_selects_the_runner_and_waits_for_a_cell_with_it(
    live: LiveStage, cell: RealCell, runner: Scripted
) -> None:
    runner.step = lambda context: RunnerObservation(RunnerPhase.SUCCEEDED, result="42")
    other = submit(live, "ray", allow_unsatisfiable=True)
    job = submit(live)
    live.until_state(job, "SUCCEEDED")
    assert [context.task.command for context in runner.contexts] == [("reindex",)]
    assert live.result(job) == "42"
    assert live.states(other) == ["PENDING"]
    assert "task type ray" in live.why(other)["text"]


def test_runner_phases_set_the_task_state_and_history(
    live: LiveStage, cell: RealCell, runner: Scripted
) -> None:
    observations = [
        RunnerObservation(RunnerPhase.QUEUED, {"n": 1}, poll_seconds=SOON),
        RunnerObservation(
            RunnerPhase.INITIALIZING, {"n": 2}, words="making room", poll_seconds=SOON
        ),
        RunnerObservation(RunnerPhase.RUNNING, {"n": 3}, words="stage 1 of 2", poll_seconds=SOON),
        RunnerObservation(RunnerPhase.RUNNING, {"n": 4}, words="stage 2 of 2", poll_seconds=SOON),
        RunnerObservation(RunnerPhase.SUCCEEDED, {"n": 5}),
    ]
    runner.step = lambda context: observations[context.state.get("n", 0)]
    job = submit(live)
    live.until_settled(job)
    states = [state for state, _, _ in live.history(job)]
    assert [state for at, state in enumerate(states) if state not in states[:at]] == [
        "ASSIGNED",
        "BUILDING",
        "RUNNING",
        "SUCCEEDED",
    ]
    messages = Transition.objects.filter(job_id=job.pk).order_by("id")
    recorded = " ".join(messages.values_list("message", flat=True))
    reported = ["queued", "making room", "stage 1 of 2", "stage 2 of 2"]
    assert sorted(reported, key=recorded.index) == reported
    assert runner.aborts == []


def test_restarted_cell_resumes_with_the_stored_runner_state(
    live: LiveStage, cell: RealCell, runner: Scripted
) -> None:
    runner.step = counting
    job = submit(live)
    live.until(lambda: len(runner.contexts) >= 3)
    cell.kill()
    kept = len(runner.contexts)
    runner.step = lambda context: RunnerObservation(
        RunnerPhase.SUCCEEDED, result=str(context.state["n"])
    )
    cell.begin()
    live.until_state(job, "SUCCEEDED")
    # The last answer may have come too late to be kept: then the call is repeated.
    assert live.result(job) in (str(kept), str(kept - 1))
    assert [attempt.number for attempt in live.attempts(job)] == [1]


def test_user_failure_is_aborted_and_retried_without_state(
    live: LiveStage, cell: RealCell, runner: Scripted
) -> None:
    def step(context: Context) -> RunnerObservation:
        if context.task.number == 2:
            return RunnerObservation(RunnerPhase.SUCCEEDED)
        if context.state:
            return RunnerObservation(RunnerPhase.RETRYABLE_FAILURE, message="bad row")
        return RunnerObservation(RunnerPhase.RUNNING, {"cluster": "c-1"}, poll_seconds=SOON)

    runner.step = step
    job = submit(live, retries={"failure": 1})
    live.until_state(job, "SUCCEEDED")
    first, second = live.attempts(job)
    assert (first.failure_kind, first.message, live.counters(job)) == ("user", "bad row", (1, 0, 0))
    [abort] = runner.aborts
    assert (abort.task.number, abort.state) == (1, {"cluster": "c-1"})
    assert runner.contexts[-1].state == {}
    assert first.released_at is not None
    assert second.created_at > first.released_at


def test_system_failure_keeps_the_state_and_charges_the_system_budget(
    live: LiveStage, cell: RealCell, runner: Scripted
) -> None:
    def step(context: Context) -> RunnerObservation:
        if context.task.number == 2:
            return RunnerObservation(RunnerPhase.SUCCEEDED)
        if context.state:
            return RunnerObservation(
                RunnerPhase.RETRYABLE_FAILURE, message="it is down", fault=FailureOrigin.SYSTEM
            )
        return RunnerObservation(RunnerPhase.RUNNING, {"cluster": "c-1"}, poll_seconds=SOON)

    runner.step = step
    job = submit(live)
    live.until_state(job, "SUCCEEDED")
    assert (live.counters(job), live.attempts(job)[0].failure_kind) == ((0, 0, 1), "system")
    assert runner.contexts[-1].state == {"cluster": "c-1"}


def test_attempt_that_never_started_does_not_lose_the_state(
    live: LiveStage, cell: RealCell, runner: Scripted
) -> None:
    runner.step = lambda context: RunnerObservation(
        RunnerPhase.RETRYABLE_FAILURE, {"cluster": "c-1"}, fault=FailureOrigin.SYSTEM
    )
    job = submit(live)
    live.until(lambda: live.states(job) == ["PENDING"] and live.attempts(job))
    runner.step = lambda context: RunnerObservation(RunnerPhase.SUCCEEDED)
    cell.is_cut_off = True
    live.until(lambda: live.states(job) == ["ASSIGNED"])
    cell.step()
    live.force(job, Event.DRAINED, Reason.DRAINED)
    cell.is_cut_off = False
    live.until_state(job, "SUCCEEDED")
    assert [attempt.number for attempt in live.attempts(job)] == [1, 2, 3]
    assert [context.task.number for context in runner.contexts] == [1, 3]
    assert runner.contexts[-1].state == {"cluster": "c-1"}


def test_cancelled_task_holds_capacity_until_its_runner_has_aborted(
    live: LiveStage, cell: RealCell, runner: Scripted
) -> None:
    runner.step = counting
    runner.end = lambda context: AbortResult(is_done=False, poll_seconds=SOON)
    job = submit(live)
    live.until_runs(job)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=live.now())
    live.until(lambda: len(runner.aborts) >= 3 or live.last(job).released_at)
    assert (live.states(job), live.last(job).released_at) == (["KILLED"], None)
    runner.end = lambda context: AbortResult(is_done=True)
    live.until_settled(job)
    assert live.last(job).release_kind == "confirmed"


def test_permanent_runner_failure_is_not_retried(
    live: LiveStage, cell: RealCell, runner: Scripted
) -> None:
    runner.step = lambda context: RunnerObservation(RunnerPhase.FAILED, message="no such table")
    job = submit(live, retries={"failure": 5})
    live.until_settled(job)
    assert (live.states(job), len(live.attempts(job))) == (["FAILED"], 1)
    assert "no such table" in live.document(job)["failure_reason"]
