"""Runners: observations change the attempt, stops are repeated, and state survives a kill."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.messages.orders import Input
from controlplane.contract.messages.reports import RUNNER_FINAL, SPEC
from controlplane.contract.messages.task_options import Output, SecretUse
from controlplane.contract.states import FailureKind
from tests.conformance.kit import until
from tests.conformance.outside import Outside, secret
from tests.conformance.runners import RunnerKit, Scripted, runner_kit
from workers.attempt.events import BuildingEvent, EndedEvent, StartedEvent
from workers.attempt.outcome import ENGINE, RUNNER, SECRET, STOPPED, TIMEOUT, VANISHED
from workers.drivers.runner.reconcile_loop import RunnerAttempt
from workers.runners.calls import CALLS_AT_ONCE
from workers.runners.interface import (
    AbortResult,
    Context,
    FailureOrigin,
    RunnerObservation,
    RunnerPhase,
)


@pytest.fixture
def outside() -> Iterator[Outside]:
    with Outside() as outside:
        yield outside


@pytest.fixture
def runner() -> Scripted:
    return Scripted()


@pytest.fixture
def kit(tmp_path: Path, outside: Outside, runner: Scripted) -> Iterator[RunnerKit]:
    with runner_kit(tmp_path, outside, scripted=runner) as kit:
        yield kit


def start(kit: RunnerKit, *command: str, **spec: object) -> str:
    launch = kit.launch(*command, **spec)
    kit.driver.start(launch)
    return launch.uid


# ------------------------------------------------------------------------------- phases


def test_phases_are_building_then_running_and_success_has_a_result(
    kit: RunnerKit, runner: Scripted
) -> None:
    observations = [
        RunnerObservation(RunnerPhase.QUEUED, {"n": 1}, poll_seconds=0),
        RunnerObservation(RunnerPhase.INITIALIZING, {"n": 2}, words="making room", poll_seconds=0),
        RunnerObservation(RunnerPhase.RUNNING, {"n": 3}, poll_seconds=0),
        RunnerObservation(RunnerPhase.SUCCEEDED, {"n": 4}, result="42"),
    ]
    runner.step = lambda context: observations[context.state.get("n", 0)]
    uid = start(kit)
    ended = kit.events.ended(uid)
    assert (ended.failure_kind, ended.exit_code, ended.result) == (None, 0, "42")
    assert ended.started_at == kit.events.started(uid).at
    assert kit.reported_phases(uid) == ["queued", "making room", "running", "succeeded"]
    assert kit.last_state(uid) == {"n": 4}
    assert kit.kinds(uid) == [BuildingEvent, BuildingEvent, StartedEvent, EndedEvent]
    assert runner.aborts == []


@pytest.mark.parametrize(
    ("observation", "kind", "reason", "aborts"),
    [
        (
            RunnerObservation(RunnerPhase.FAILED, message="no such table"),
            FailureKind.USER,
            RUNNER_FINAL,
            0,
        ),
        (
            RunnerObservation(RunnerPhase.RETRYABLE_FAILURE, message="bad row"),
            FailureKind.USER,
            RUNNER,
            1,
        ),
        (
            RunnerObservation(
                RunnerPhase.RETRYABLE_FAILURE, message="it is down", fault=FailureOrigin.SYSTEM
            ),
            FailureKind.SYSTEM,
            RUNNER,
            1,
        ),
    ],
)
def test_runner_failure_maps_to_kind_and_is_aborted_unless_final(
    kit: RunnerKit,
    runner: Scripted,
    observation: RunnerObservation,
    kind: FailureKind,
    reason: str,
    aborts: int,
) -> None:
    runner.step = lambda context: observation
    ended = kit.events.ended(start(kit))
    assert (ended.failure_kind, ended.reason, ended.message) == (kind, reason, observation.message)
    assert len(runner.aborts) == aborts


def test_runner_receives_task_files_secrets_and_previous_state(
    kit: RunnerKit, runner: Scripted, outside: Outside
) -> None:
    outside.launch_contexts["attempt-9"] = LaunchContext(
        secrets={"token": secret("hush")}, plugin_state={"job": "from before"}
    )

    def step(context: Context) -> RunnerObservation:
        content = context.task.path("/in/text").read_text()
        context.task.path("/out/result").write_text(content.upper())
        context.log.out("a line")
        context.log.err("another")
        return RunnerObservation(RunnerPhase.SUCCEEDED)

    runner.step = step
    kit.outside.files["/text"] = b"some text"
    launch = kit.launch(
        "do",
        "it",
        uid="attempt-9",
        number=2,
        inputs=(Input("/in/text", f"{outside.url}/text"),),
        result_file="/out/result",
        resources={"cpu_millis": 100},
    )
    kit.driver.start(launch)
    assert kit.events.ended(launch.uid).result == "SOME TEXT"
    [context] = runner.contexts
    task = context.task
    assert (task.uid, task.number, task.command) == (launch.uid, 2, ("do", "it"))
    assert (task.resources, task.inputs) == ({"cpu_millis": 100}, ("/in/text",))
    assert task.env["CELLRUN_ATTEMPT_UID"] == launch.uid
    assert context.state == {"job": "from before"}
    assert context.secrets == {"token": b"hush"}
    assert (kit.log(launch.uid), kit.log(launch.uid, "stderr")) == ("a line\n", "another\n")
    assert "hush" not in repr(context)


def test_container_only_limits_are_refused_by_name(kit: RunnerKit, runner: Scripted) -> None:
    ended = kit.events.ended(start(kit, ports=("http",), idle_timeout_seconds=3.0))
    assert (ended.failure_kind, ended.reason, ended.never_created) == (FailureKind.USER, SPEC, True)
    assert ended.message is not None
    assert "idle_timeout_seconds, ports: not for task_type scripted" in ended.message
    assert runner.contexts == []


# ------------------------------------------------------------------------------- faults


def test_runner_error_is_retried_and_a_system_failure_after_three_in_a_row(
    kit: RunnerKit, runner: Scripted
) -> None:
    def step(context: Context) -> RunnerObservation:
        if len(runner.contexts) == 2:
            return RunnerObservation(RunnerPhase.RUNNING, {"kept": True}, poll_seconds=0)
        raise OSError("the service does not answer")

    runner.step = step
    uid = start(kit)
    ended = kit.events.ended(uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, RUNNER)
    assert "3 times in a row: OSError: the service does not answer" in str(ended.message)
    assert len(runner.contexts) == 5
    assert [context.state for context in runner.aborts] == [{"kept": True}]
    assert kit.log(uid, "stderr").count("the service does not answer") == 5


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"text": "x" * 70_000}, "65536 are allowed"),
        ({"text": "a\x00b"}, "NUL"),
        ({"number": float("nan")}, "not JSON"),
        ([1, 2], "not a JSON object"),
    ],
)
def test_unstorable_runner_state_is_a_system_failure(
    kit: RunnerKit, runner: Scripted, state: object, words: str
) -> None:
    runner.step = lambda context: RunnerObservation(RunnerPhase.RUNNING, state)  # type: ignore[arg-type]
    ended = kit.events.ended(start(kit))
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, RUNNER)
    assert words in str(ended.message)
    assert [context.state for context in runner.aborts] == [{}]


def test_hanging_call_times_out_and_other_runners_continue(
    tmp_path: Path, outside: Outside
) -> None:
    may_return = threading.Event()

    def hang(context: Context) -> RunnerObservation:
        may_return.wait()
        return RunnerObservation(RunnerPhase.SUCCEEDED)

    hanging, well = (
        Scripted(hang),
        Scripted(lambda context: RunnerObservation(RunnerPhase.SUCCEEDED)),
    )
    with runner_kit(tmp_path, outside, call_seconds=0.3, hanging=hanging, well=well) as kit:
        uid = start(kit, task_type="hanging")
        ended = kit.events.ended(uid)
        assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, RUNNER)
        assert "did not return within 0.3 s" in str(ended.message)
        assert len(hanging.aborts) == 1
        assert kit.events.ended(start(kit, task_type="well")).exit_code == 0
        may_return.set()


def test_runner_with_all_calls_hanging_does_not_block_others(
    tmp_path: Path, outside: Outside
) -> None:
    may_return = threading.Event()

    def hang(context: Context) -> RunnerObservation:
        may_return.wait()
        return RunnerObservation(RunnerPhase.SUCCEEDED)

    hanging, well = (
        Scripted(hang),
        Scripted(lambda context: RunnerObservation(RunnerPhase.SUCCEEDED)),
    )
    with runner_kit(tmp_path, outside, hanging=hanging, well=well) as kit:
        uids = [start(kit, task_type="hanging") for _ in range(CALLS_AT_ONCE)]
        until(lambda: len(hanging.contexts) == CALLS_AT_ONCE)
        assert kit.events.ended(start(kit, task_type="well"), 10.0).exit_code == 0
        may_return.set()
        assert [kit.events.ended(uid).exit_code for uid in uids] == [0] * CALLS_AT_ONCE


# ------------------------------------------------------------------------------- stops


def test_stop_is_repeated_until_done_and_forced_after_the_grace_period(
    kit: RunnerKit, runner: Scripted
) -> None:
    def end(context: Context) -> AbortResult:
        assert context.stop is not None
        is_forced = context.stop.is_forced
        return AbortResult(is_done=is_forced, state={"ended": is_forced}, poll_seconds=0.05)

    runner.end = end
    uid = start(kit)
    kit.events.started(uid)
    kit.driver.stop(uid, grace_seconds=0.5, force=False)
    ended = kit.events.ended(uid)
    assert (ended.failure_kind, ended.exit_code, ended.reason) == (None, None, STOPPED)
    stops = [context.stop for context in runner.aborts]
    assert len(stops) > 2
    assert {stop.reason for stop in stops if stop} == {STOPPED}
    assert [stop.is_forced for stop in stops if stop] == [False] * (len(stops) - 1) + [True]
    assert kit.last_state(uid) == {"ended": True}


def test_failing_abort_is_retried_before_the_end_is_reported(
    kit: RunnerKit, runner: Scripted
) -> None:
    def end(context: Context) -> AbortResult:
        if len(runner.aborts) < 3:
            assert EndedEvent not in kit.kinds(context.task.uid)
            raise OSError("not now")
        return AbortResult(is_done=True)

    runner.end = end
    uid = start(kit)
    kit.events.started(uid)
    kit.driver.stop(uid, grace_seconds=0.0, force=True)
    assert kit.events.ended(uid).reason == STOPPED
    assert len(runner.aborts) == 3


def test_timeout_counts_from_the_running_phase(kit: RunnerKit, runner: Scripted) -> None:
    uid = start(kit, timeout_seconds=0.3)
    assert kit.events.ended(uid).reason == TIMEOUT
    assert runner.contexts[-1].deadline == kit.events.started(uid).at + 0.3
    assert [context.stop.reason for context in runner.aborts if context.stop] == [TIMEOUT]


def test_removed_attempt_is_aborted_and_its_folder_deleted(
    kit: RunnerKit, runner: Scripted
) -> None:
    uid = start(kit)
    kit.events.started(uid)
    kit.driver.remove(uid)
    until(lambda: not list(kit.driver.find()))
    until(lambda: not (kit.home / "work" / uid).exists())
    assert len(runner.aborts) == 1


# ------------------------------------------------------------------------------- deaths


def test_successor_resumes_from_the_last_kept_state(kit: RunnerKit, runner: Scripted) -> None:
    def step(context: Context) -> RunnerObservation:
        return RunnerObservation(
            RunnerPhase.RUNNING, {"n": context.state.get("n", 0) + 1}, poll_seconds=3600
        )

    runner.step = step
    launch = kit.launch()
    kit.driver.start(launch)
    at = kit.events.started(launch.uid).at
    kit.begin_again()
    assert [(found.uid, found.running) for found in kit.driver.find()] == [(launch.uid, True)]
    runner.step = lambda context: RunnerObservation(
        RunnerPhase.SUCCEEDED, result=str(context.state["n"])
    )
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.result, ended.started_at) == ("1", at)
    assert kit.reported_phases(launch.uid) == ["running", "succeeded"]
    assert len(runner.contexts) == 2


def test_successor_fetches_secrets_again_and_no_file_contains_them(
    kit: RunnerKit, runner: Scripted, outside: Outside
) -> None:
    launch = kit.launch(secrets=(SecretUse("token", env="TOKEN"),))
    outside.launch_contexts[launch.uid] = LaunchContext(secrets={"token": secret("very-hushed")})
    runner.step = lambda context: RunnerObservation(
        RunnerPhase.RUNNING, {"n": 1}, poll_seconds=3600
    )
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    kit.begin_again()
    runner.step = lambda context: RunnerObservation(RunnerPhase.SUCCEEDED)
    kit.driver.adopt(launch)
    kit.events.ended(launch.uid)
    assert [context.secrets for context in runner.contexts] == [{"token": b"very-hushed"}] * 2
    assert [context.task.env["TOKEN"] for context in runner.contexts] == ["very-hushed"] * 2
    files = [path for path in (kit.home / "work" / launch.uid).rglob("*") if path.is_file()]
    assert "order.json" in {path.name for path in files}
    assert not [path for path in files if b"very-hushed" in path.read_bytes()]


def test_successor_completes_an_interrupted_stop(kit: RunnerKit, runner: Scripted) -> None:
    runner.end = lambda context: AbortResult(is_done=False, poll_seconds=3600)
    launch = kit.launch()
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    kit.driver.stop(launch.uid, grace_seconds=300, force=False)
    until(lambda: runner.aborts)
    kit.begin_again()
    calls = len(runner.contexts)
    runner.end = lambda context: AbortResult(is_done=True)
    kit.driver.adopt(launch)
    assert kit.events.ended(launch.uid).reason == STOPPED
    assert len(runner.contexts) == calls


def test_unadopted_attempt_is_aborted_with_its_kept_state_before_removal(
    kit: RunnerKit, runner: Scripted
) -> None:
    runner.step = lambda context: RunnerObservation(
        RunnerPhase.RUNNING, {"job": 7}, poll_seconds=3600
    )
    uid = start(kit)
    kit.events.started(uid)
    kit.begin_again()
    kit.driver.remove(uid)
    until(lambda: not list(kit.driver.find()))
    assert [context.state for context in runner.aborts] == [{"job": 7}]


def is_unreadable(event: object, uid: str) -> bool:
    """Return whether a log line reports an attempt with unreadable state."""
    return (
        isinstance(event, dict)
        and event["event"] == "runner_state_unreadable"
        and event["attempt"] == uid
    )


def test_unreadable_state_is_awaited_and_aborted_before_the_end_is_reported(
    kit: RunnerKit, runner: Scripted, outside: Outside, caplog: pytest.LogCaptureFixture
) -> None:
    launch = kit.launch(secrets=(SecretUse("token"),))
    outside.launch_contexts[launch.uid] = LaunchContext(secrets={"token": secret("hush")})
    runner.step = lambda context: RunnerObservation(
        RunnerPhase.RUNNING, {"job": 7}, poll_seconds=3600
    )
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    kit.begin_again()
    kept, aside = kit.home / "work" / launch.uid / "runner" / "kept.json", kit.home / "aside"
    kept.rename(aside)
    kept.mkdir()  # to read it is an error of the system
    kit.driver.adopt(launch)
    until(lambda: any(is_unreadable(record.msg, launch.uid) for record in caplog.records))
    assert (runner.aborts, kit.kinds(launch.uid)) == ([], [])
    kept.rmdir()
    aside.rename(kept)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, ENGINE)
    assert [(c.state, c.secrets) for c in runner.aborts] == [({"job": 7}, {"token": b"hush"})]


def test_internal_error_of_the_cell_aborts_the_external_job(
    kit: RunnerKit, runner: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(attempt: object, at: float) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(RunnerAttempt, "mark_runs", cannot)
    runner.step = lambda context: RunnerObservation(RunnerPhase.RUNNING, {"job": 7})
    runner.end = lambda context: AbortResult(is_done=len(runner.aborts) == 2, poll_seconds=0)
    ended = kit.events.ended(start(kit))
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, ENGINE)
    assert "can't start new thread" in str(ended.message)
    assert [context.state for context in runner.aborts] == [{"job": 7}] * 2


def test_an_attempt_whose_secret_is_gone_is_ended_by_the_successor(
    kit: RunnerKit, runner: Scripted, outside: Outside
) -> None:
    launch = kit.launch(secrets=(SecretUse("token"), SecretUse("other")))
    outside.launch_contexts[launch.uid] = LaunchContext(
        secrets={"token": secret("a"), "other": secret("b")}
    )
    runner.step = lambda context: RunnerObservation(
        RunnerPhase.RUNNING, {"job": 7}, poll_seconds=3600
    )
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    kit.begin_again()
    outside.launch_contexts[launch.uid] = LaunchContext(
        secrets={"other": secret("b")}, missing=("token",)
    )
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, SECRET)
    assert [(c.state, c.secrets) for c in runner.aborts] == [({"job": 7}, {"other": b"b"})]


def test_timeout_keeps_counting_while_waiting_for_secrets(
    kit: RunnerKit, runner: Scripted, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = kit.launch(secrets=(SecretUse("token"),), timeout_seconds=2.0)
    outside.launch_contexts[launch.uid] = LaunchContext(secrets={"token": secret("hush")})
    runner.step = lambda context: RunnerObservation(RunnerPhase.RUNNING, poll_seconds=3600)
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    kit.begin_again()
    monkeypatch.setattr(Outside, "answer", lambda *of: (503, b"{}"))
    kit.driver.adopt(launch)
    assert kit.events.ended(launch.uid).reason == TIMEOUT
    assert len(runner.aborts) == 1


def test_attempt_failed_before_its_launch_is_forgotten_on_removal(
    kit: RunnerKit, runner: Scripted, outside: Outside
) -> None:
    launch = kit.launch(secrets=(SecretUse("token"),))
    outside.launch_contexts[launch.uid] = LaunchContext(missing=("token",))
    kit.driver.start(launch)
    assert kit.events.ended(launch.uid).reason == SECRET
    kit.driver.remove(launch.uid)
    until(lambda: not (kit.home / "work" / launch.uid).exists())
    # Nor is it in charge any more: it is taken as if it had never been here.
    outside.launch_contexts[launch.uid] = LaunchContext(secrets={"token": secret("hush")})
    kit.driver.start(launch)
    kit.events.started(launch.uid)


def test_adopted_attempt_without_a_runner_call_is_reported_vanished(kit: RunnerKit) -> None:
    launch = kit.launch()
    kit.driver.adopt(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.OUTSIDE, VANISHED)


def test_processes_and_runners_share_a_cell(kit: RunnerKit, runner: Scripted) -> None:
    runner.step = lambda context: RunnerObservation(RunnerPhase.SUCCEEDED)
    uids = [start(kit, "sh", "-c", "exit 3", task_type="process"), start(kit)]
    assert [kit.events.ended(uid).exit_code for uid in uids] == [3, 0]
    assert sorted(found.uid for found in kit.driver.find()) == sorted(uids)
    for uid in uids:
        kit.driver.remove(uid)
    until(lambda: not list(kit.driver.find()))


def test_outputs_are_kept_after_a_success_and_the_checkpoint_after_a_failure(
    kit: RunnerKit, runner: Scripted, outside: Outside
) -> None:
    base = kit.home.parent / "base"

    def step(context: Context) -> RunnerObservation:
        task = context.task
        task.path(task.outputs["table"]).write_text("1,2,3")
        task.path("/state/at").write_text(str(task.number))
        phase = RunnerPhase.RETRYABLE_FAILURE if task.number == 1 else RunnerPhase.SUCCEEDED
        return RunnerObservation(phase)

    runner.step = step
    kept = {}
    for number in (1, 2):
        outside.launch_contexts[f"uid-{number}"] = LaunchContext(
            output_base=f"file://{base}/{number}/"
        )
        launch = kit.launch(
            uid=f"uid-{number}",
            number=number,
            outputs=(Output("/out/table.csv", "table"),),
            checkpoint_path="/state",
        )
        kit.driver.start(launch)
        kept[number] = kit.events.ended(launch.uid).outputs
    assert [[item["name"] for item in kept[number] or ()] for number in (1, 2)] == [
        ["_checkpoint.tar"],
        ["table"],
    ]
    assert (base / "2" / "table").read_text() == "1,2,3"
