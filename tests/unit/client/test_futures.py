"""Calls become few jobs, functions run in a program of their own, and futures can be cancelled."""

import base64
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import Any

import pytest

from cellrun import Command, Job, RemoteTraceback
from cellrun.errors import BadInput
from cellrun.futures import functions
from cellrun.futures.bundles import PendingCall, bundle_calls, shape_of
from cellrun.futures.executor import Executor
from cellrun.futures.promises import ServerFuture
from cellrun.settings import ClientSettings
from controlplane.spec import parse_job

JOB = {"name": "python", "domain": "default", "project": "default"}


def future() -> ServerFuture[Any]:
    return ServerFuture(lambda cancelled: None)


def command(*words: str) -> PendingCall:
    return PendingCall(future(), shape_of({"task_type": "process", "command": list(words)}))


def test_equal_commands_are_replicas_and_others_have_groups_of_their_own() -> None:
    calls = [command("a"), command("b"), command("a"), command("a")]
    [bundle] = bundle_calls(calls, JOB, most_tasks=500)
    groups = [(g["name"], g["command"], g["replicas"]) for g in bundle.document["groups"]]
    assert groups == [("call-0", ["a"], 3), ("call-1", ["b"], 1)]
    assert bundle.futures["call-0.2"] is calls[3].future
    assert bundle.futures["call-1.0"] is calls[1].future
    spec = parse_job(bundle.document)
    assert spec.max_task_failures == 4, "a failure must not end the other calls"


@pytest.mark.parametrize(
    ("calls", "sizes"),
    [
        ([command("a") for _ in range(7)], [3, 3, 1]),
        ([command(str(number)) for number in range(4)], [3, 1]),
    ],
)
def test_no_job_has_more_tasks_than_allowed(calls: list[PendingCall], sizes: list[int]) -> None:
    bundles = list(bundle_calls(calls, JOB, most_tasks=3))
    assert [len(bundle.futures) for bundle in bundles] == sizes


def test_no_job_has_more_groups_or_bytes_than_the_server_accepts() -> None:
    many = [command(str(number)) for number in range(150)]
    assert [len(b.futures) for b in bundle_calls(many, JOB, most_tasks=500)] == [100, 50]
    large = [PendingCall(future(), "{}", "f", "x" * 1_000_000) for _ in range(3)]
    assert [len(b.futures) for b in bundle_calls(large, JOB, most_tasks=500)] == [1, 1, 1]


def run_in_task(folder: Path, function: Callable[..., Any], *args: Any) -> tuple[int, bytes]:
    """Run a call as a task does; return the exit code and what is left for the caller."""
    packed = functions.input_of(
        functions.pack_function(function), ["unused", functions.pack_call(args, {})]
    )
    (folder / "in").mkdir()
    (folder / "in" / "calls").write_text(packed["content"])
    done = subprocess.run(
        functions.group_of_function(sys.executable)["command"],
        env={**os.environ, "CELLRUN_ROOT": str(folder), "CELLRUN_TASK_INDEX": "1"},
        capture_output=True,
        check=False,
    )
    result, value = folder / "out" / "result", folder / "out" / "value" / "pickle"
    assert result.exists() is not value.exists(), done.stderr
    return done.returncode, (result if result.exists() else value).read_bytes()


def test_function_of_main_returns_its_result(tmp_path: Path) -> None:
    factor = 3
    code, left = run_in_task(tmp_path, lambda number: number * factor, 14)
    assert (code, functions.unpack(left, "7/main.1")) == (0, 42)
    assert len(left) <= 10_240


def test_large_result_is_left_as_an_output(tmp_path: Path) -> None:
    code, left = run_in_task(tmp_path, os.urandom, 200_000)
    assert code == 0
    assert len(functions.unpack(left, "7/main.1")) == 200_000


def test_exception_comes_back_with_its_traceback_as_the_cause(tmp_path: Path) -> None:
    def fail(name: str) -> None:
        raise KeyError(name)

    code, left = run_in_task(tmp_path, fail, "missing")
    assert code == 1
    with pytest.raises(KeyError, match="missing") as caught:
        functions.unpack(left, "7/main.1")
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in fail" in caught.value.__cause__.text


def test_exception_that_cannot_be_pickled_comes_back_as_text(tmp_path: Path) -> None:
    def fail() -> None:
        class Hostile(Exception):
            def __reduce__(self):  # type: ignore[no-untyped-def]
                raise TypeError("no")

        raise Hostile("the words")

    code, left = run_in_task(tmp_path, fail)
    assert code == 1
    with pytest.raises(RuntimeError, match="Hostile: the words"):
        functions.unpack(left, "7/main.1")


def test_another_version_of_python_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(functions.task_program, "version", lambda: "3.1")
    code, left = run_in_task(tmp_path, len, "a")
    assert code == 1
    with pytest.raises(RuntimeError, match=r"from Python 3\.1, and the task has"):
        functions.unpack(left, "7/main.1")


def test_arguments_that_are_too_large_are_refused() -> None:
    with pytest.raises(BadInput, match="pass the address of a file"):
        functions.pack_call([os.urandom(2_000_000)], {})


def test_cancelled_future_is_returned_by_wait_and_accepts_no_result() -> None:
    cancelled: list[ServerFuture[Any]] = []
    one: ServerFuture[Any] = ServerFuture(cancelled.append)
    one.begin()
    assert one.running()
    assert one.cancel()
    assert one.cancel()
    assert cancelled == [one], "the server is called once"
    one.resolve(1)
    one.reject(ValueError())
    assert one.cancelled()
    assert wait([one], timeout=5, return_when=FIRST_COMPLETED).done == {one}


def test_future_that_is_done_cannot_be_cancelled() -> None:
    one = future()
    one.resolve(base64.b64encode(pickle.dumps(1)))
    assert not one.cancel()


@pytest.mark.parametrize("words", ["echo a", [], [1], None])
def test_command_that_is_no_list_of_words_is_refused(words: Any) -> None:
    with pytest.raises(BadInput, match="a list of words"):
        Command(words)


def test_job_is_described_without_its_defaults() -> None:
    document = Job(name="a", command=["true"], replicas=3, fields={"band": "batch"}).document()
    assert document == {
        "name": "a", "task_type": "process", "command": ["true"], "replicas": 3, "band": "batch",
    }  # fmt: skip
    assert parse_job(document).groups[0].replicas == 3


def test_executor_accepts_nothing_after_its_shutdown() -> None:
    executor = Executor(ClientSettings("http://127.0.0.1:9", "token"))
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(["true"])
