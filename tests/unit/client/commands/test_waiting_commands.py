"""`run`, `submit`, `wait`, `status`: the number, the failing task, and Ctrl-C."""

import os
import signal

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.harness.terminal import read_until, terminal
from tests.unit.client.commands.test_commands import serve_run
from tests.unit.client.documents import a_job, a_page, a_task
from tests.unit.client.stub_server import Api


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_detached_run_prints_the_id_alone(environment: Api) -> None:
    environment.answer("POST /api/v1/jobs", a_job(state="PENDING"), 201)
    result = call("run", "-d", "busybox", "--", "true")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "7\n", "")
    assert len(environment.requests) == 1
    assert call("run", "-d", "busybox", "--deadline", "3", "--", "true").exit_code == 2


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"exit_code": 137, "failure_reason": "out of memory"},
            "7/main.0 failed on cell-1: out of memory (exit code 137, SIGKILL); its log:"
            " cellrun logs 7/main.0",
        ),
        (
            {"exit_code": 7, "failure_reason": "exit status 7"},
            "7/main.0 failed on cell-1: exit status 7; its log: cellrun logs 7/main.0",
        ),
        (
            {"exit_code": 139, "failure_reason": "exit status 139"},
            "7/main.0 failed on cell-1: exit status 139 (SIGSEGV); its log: cellrun logs 7/main.0",
        ),
        (
            {"attempt_number": 0, "cell_id": None, "failure_reason": "a group failed"},
            "7/main.0 failed: a group failed; its history: cellrun history 7/main.0",
        ),
    ],
)
def test_failing_task_is_named_with_its_reason_and_its_log(
    environment: Api, fields: dict[str, object], line: str
) -> None:
    task = a_task(**{"state": "FAILED", "attempt_number": 1, "cell_id": "cell-1", **fields})
    ended = a_job(state="FAILED", failure_reason="1 task failed, 0 tolerated")
    environment.answer("GET /api/v1/jobs/7", ended)
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(task))
    result = call("wait", "7")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-2:] == [
        "job 7 (sweep) failed: 1 task failed, 0 tolerated",
        f"  {line}",
    ]


def test_only_the_first_of_many_failing_tasks_are_named(environment: Api) -> None:
    tasks = [a_task(id=n, index=n, state="FAILED", exit_code=1) for n in range(4)]
    environment.answer("GET /api/v1/jobs/7", a_job(state="FAILED"))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(*tasks))
    lines = call("wait", "7").stderr.splitlines()
    assert [line.split()[0] for line in lines[-4:-1]] == ["7/main.0", "7/main.1", "7/main.2"]
    assert lines[-1] == "  … and more: cellrun job 7"


def test_message_of_the_engine_is_that_of_the_attempt(environment: Api) -> None:
    serve_run(environment, state="WORKER_FAILED", exit_code=None)
    attempt = {"number": 1, "failure_reason": "pull: no such host"}
    environment.answer("GET /api/v1/tasks/70/attempts", a_page(attempt))
    result = call("run", "busybox", "--", "true")
    assert "7/main.0 worker_failed: pull: no such host; its log:" in result.stderr


@pytest.mark.parametrize(
    ("state", "short"),
    [
        ("PENDING", "running"),
        ("RUNNING", "running"),
        ("SUCCEEDED", "success"),
        ("FAILED", "failed"),
        ("KILLED", "failed"),
        ("UNSCHEDULABLE", "failed"),
    ],
)
def test_status_is_one_word_for_workflow_managers(environment: Api, state: str, short: str) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(state=state))
    result = call("status", "7", "--short")
    assert (result.exit_code, result.stdout) == (0, f"{short}\n")
    long = call("status", "7").stdout
    assert long == f"job 7 (sweep) {state.lower()}: 1 pending, 1 running\n"


def serve_open_job(api: Api) -> None:
    api.answer("POST /api/v1/jobs", a_job(), 201)
    api.answer("GET /api/v1/jobs/7", a_job())
    api.answer("GET /api/v1/jobs/7/tasks", a_page(a_task(state="RUNNING")))
    api.answer("POST /api/v1/jobs/7/cancel", a_job(ending_as="KILLED"), 202)


@pytest.mark.parametrize(
    ("typed", "expected", "is_cancelled"),
    [
        (b"y\n", b"job 7 is being cancelled", True),
        (b"\n", b"`cellrun cancel 7` cancels it", False),
    ],
)
def test_interrupt_on_a_terminal_prompts(
    environment: Api, typed: bytes, expected: bytes, is_cancelled: bool
) -> None:
    serve_open_job(environment)
    with terminal("run", "busybox", "--", "true") as (process, end):
        read_until(end, b"job 7 (sweep)")
        process.send_signal(signal.SIGINT)
        read_until(end, b"Cancel job 7? Otherwise it continues to run. [y/N] ")
        os.write(end, typed)
        assert expected in read_until(end, expected)
        assert process.wait(60) == 130
    calls = [name for name, *_ in environment.requests]
    assert ("POST /api/v1/jobs/7/cancel" in calls) == is_cancelled


def test_interrupted_wait_prints_how_to_continue(environment: Api) -> None:
    serve_open_job(environment)
    with terminal("wait", "7") as (process, end):
        read_until(end, b"1 running")
        process.send_signal(signal.SIGINT)
        hint = b"job 7 continues: `cellrun logs -f 7` follows it, `cellrun cancel 7` cancels it"
        assert hint in read_until(end, hint)
        assert process.wait(60) == 130
