"""Runners by name, what of their answers is kept, and calls of them that do not come back."""

import threading
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from workers.agent.registration import offered_types
from workers.attempt.capture import cut_note
from workers.config import CellConfig
from workers.drivers.runner.log import LineWriter
from workers.runners import discovery, records
from workers.runners.calls import CallsExhausted, CallTimedOut, RunnerCalls
from workers.runners.discovery import InvalidRunner, chosen_names, load_runner
from workers.runners.interface import (
    AbortResult,
    Context,
    FailureOrigin,
    RunnerObservation,
    RunnerPhase,
)
from workers.runners.records import RunnerRecord, StateNotStorable, checked, checked_state
from workers.runners.requests import describe_task


class Idle:
    """A runner as other packages bring them."""

    def reconcile(self, context: Context) -> RunnerObservation:
        return RunnerObservation(RunnerPhase.RUNNING)

    def abort(self, context: Context) -> AbortResult:
        return AbortResult(is_done=True)


class Half:
    def reconcile(self, context: Context) -> RunnerObservation:
        return RunnerObservation(RunnerPhase.RUNNING)


def entry(name: str, what: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{what}", discovery.GROUP)


# ------------------------------------------------------------------------------- by name


def test_runner_class_is_instantiated_when_loaded() -> None:
    assert isinstance(load_runner(entry("idle", "Idle")), Idle)


@pytest.mark.parametrize(
    ("name", "what", "words"),
    [
        ("container", "Idle", "its name is reserved"),
        ("process", "Idle", "its name is reserved"),
        ("all", "Idle", "its name is reserved"),
        ("Not A Name", "Idle", "invalid"),
        ("half", "Half", "it has no abort"),
        ("none", "Nothing", "AttributeError"),
    ],
)
def test_invalid_runner_is_refused_with_the_reason(name: str, what: str, words: str) -> None:
    with pytest.raises(InvalidRunner, match=words):
        load_runner(entry(name, what))


def test_names_that_are_not_installed_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"elsewhere: not installed here \(installed: none\)"):
        chosen_names("elsewhere")
    assert chosen_names("all") == ()


@pytest.mark.parametrize(
    ("driver", "types"),
    [
        ("docker", ("container", "http-job")),
        ("process", ("process", "http-job")),
        ("memory", ("container", "process")),
    ],
)
def test_cell_offers_the_task_types_of_its_driver_and_runners(
    driver: str, types: tuple[str, ...]
) -> None:
    config = CellConfig(
        name="cell-1",
        key=b"k" * 32,
        home=Path("/nowhere"),
        broker_url="",
        control_url="",
        installation="unit",
        capacity={},
        driver=driver,
        runners=("http-job",),
    )
    assert offered_types(config) == types


# ------------------------------------------------------------------------------- kept


def test_start_time_is_set_once_and_an_omitted_state_is_kept() -> None:
    first = checked(RunnerObservation(RunnerPhase.RUNNING, {"a": 1}), RunnerRecord(), 10.0)
    second = checked(RunnerObservation(RunnerPhase.RUNNING, words="x" * 100), first, 20.0)
    assert (second.started_at, second.state, second.words) == (10.0, {"a": 1}, "x" * 63)


@pytest.mark.parametrize(
    ("phase", "is_over"),
    [
        (RunnerPhase.RUNNING, False),
        (RunnerPhase.SUCCEEDED, True),
        (RunnerPhase.FAILED, True),
        (RunnerPhase.RETRYABLE_FAILURE, False),
    ],
)
def test_only_success_and_final_failure_need_no_abort(phase: RunnerPhase, is_over: bool) -> None:
    assert checked(RunnerObservation(phase), RunnerRecord(), 1.0).is_over is is_over


@pytest.mark.parametrize(
    "observation",
    [RunnerObservation("asleep"), RunnerObservation(RunnerPhase.RUNNING, fault="nobody")],  # type: ignore[arg-type]
)
def test_observation_with_unknown_phase_or_fault_is_refused(observation: RunnerObservation) -> None:
    with pytest.raises(StateNotStorable, match="not a RunnerPhase and a FailureOrigin"):
        checked(observation, RunnerRecord(), 1.0)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": "\x00"}, "NUL"),
        ({"a": "\\\x00"}, "NUL"),
        ({"a": "\ud800"}, "not JSON"),
        ({"a": float("inf")}, "not JSON"),
        ({"a": {1, 2}}, "not JSON"),
        ("text", "not a JSON object"),
        ({"a": "x" * 65_600}, "65536 are allowed"),
    ],
)
def test_state_that_a_database_cannot_store_is_refused(state: object, words: str) -> None:
    with pytest.raises(StateNotStorable, match=words):
        checked_state(state, {})


def test_state_with_an_escaped_nul_is_accepted() -> None:
    assert checked_state({"a": "\\u0000"}, {}) == {"a": "\\u0000"}


def test_kept_record_is_read_back_ignoring_unknown_fields(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kept.json"
    assert records.read(path) is None
    kept = RunnerRecord(
        RunnerPhase.RETRYABLE_FAILURE, {"a": 1}, fault=FailureOrigin.SYSTEM, stopped_for="drained"
    )
    records.write(path, kept)
    assert records.read(path) == kept
    path.write_text(path.read_text().replace('"words"', '"later": 1, "words"'))
    assert records.read(path) == kept


def test_torn_record_is_read_as_begun_and_to_be_aborted(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text('{"phase": "runn')
    kept = records.read(path)
    assert kept is not None
    assert (kept.phase, kept.fault, kept.is_over) == (
        RunnerPhase.RETRYABLE_FAILURE,
        FailureOrigin.SYSTEM,
        False,
    )


# ------------------------------------------------------------------------------- calls


def test_a_call_that_hangs_is_counted_until_it_returns() -> None:
    calls, may_return = RunnerCalls(max_abandoned=1), threading.Event()
    with pytest.raises(CallTimedOut):
        calls.call("hangs", may_return.wait, 0.01)
    assert calls.abandoned == 1
    with pytest.raises(CallsExhausted):
        calls.call("another", may_return.wait, 0.01)
    may_return.set()
    end = time.monotonic() + 30
    while calls.abandoned and time.monotonic() < end:
        threading.Event().wait(0.001)
    assert calls.call("works again", lambda: 7, 10.0) == 7


def test_call_exceptions_propagate_and_system_exit_is_an_error() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(ZeroDivisionError):
        RunnerCalls().call("divides", lambda: 1 / 0, 10.0)
    with pytest.raises(RuntimeError, match="it raised SystemExit"):
        RunnerCalls().call("leaves", leave, 10.0)


def test_number_of_concurrent_calls_is_limited() -> None:
    calls, may_return, lock = RunnerCalls(at_once=2), threading.Event(), threading.Lock()
    under_way, most = 0, 0

    def work() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        may_return.wait(0.02)
        with lock:
            under_way -= 1

    threads = [threading.Thread(target=calls.call, args=("work", work, 10.0)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


# ------------------------------------------------------------------------------- given


def test_job_paths_resolve_below_the_attempt_folder(tmp_path: Path) -> None:
    run, spec = RunAttempt("uid", 1, 2, 0, 1, 0.0), GroupSpec(1, 3, "job", "main", 1)
    task = describe_task(run, spec, {"A": "b"}, cell="cell-1", root=tmp_path)
    assert task.path("/in/text") == tmp_path / "in" / "text"
    assert task.env == {"A": "b", "CELLRUN_ROOT": str(tmp_path)}
    with pytest.raises(ValueError, match="leads elsewhere"):
        task.path("/in/../../etc/passwd")


def test_runner_output_is_truncated_with_a_note(tmp_path: Path) -> None:
    lines = LineWriter(tmp_path, 10)
    lines.out("12345")
    lines.out("67890")
    lines.out("more")
    lines.err("x")
    note = cut_note(10).decode()
    assert (tmp_path / "stdout").read_text() == "12345\n6789" + note
    assert (tmp_path / "stderr").read_text() == "x\n"
