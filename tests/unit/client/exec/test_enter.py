"""`cellrun exec`: its words, and the errors before a program runs."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from cellrun.commands.jobs.enter import read_command
from tests.unit.client.documents import a_page, a_task
from tests.unit.client.stub_server import Api

UID = "01890a5d-ac96-774b-bcce-b302099a8057"
STREAM = """
import os, sys
from cellrun.cli import app
from cellrun.commands.jobs import enter
def attach(*args, **options):
    closed = int(sys.argv.pop())
    os.write(closed, b"output")
    assert os.path.samestat(os.fstat(closed), os.stat(os.devnull))
    return 7, "a reason"
enter.attach = attach
app(["exec", "%s", "true"])
"""


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["exec", *words])


@pytest.mark.parametrize(
    ("given", "command", "flags"),
    [
        ([], (), ""),
        (["ls", "-l"], ("ls", "-l"), ""),
        (["--", "ls", "-l"], ("ls", "-l"), ""),
        (["-it", "--", "sh"], ("sh",), "it"),
        (["-i", "--tty", "sh", "-i"], ("sh", "-i"), "it"),
        (["--", "--", "-i"], ("--", "-i"), ""),
    ],
)
def test_words_behind_the_task(given: list[str], command: tuple[str, ...], flags: str) -> None:
    assert read_command(given) == (command, flags)


def test_command_is_needed_without_a_terminal(environment: Api) -> None:
    result = call(UID)
    assert result.exit_code == 255
    assert "no command: use `cellrun exec TASK -- COMMAND`" in result.stderr
    assert environment.requests == []


def test_terminal_is_needed_for_an_interactive_one(environment: Api) -> None:
    result = call("-it", UID, "--", "sh")
    assert result.exit_code == 255
    assert "-t: standard input is not a terminal; omit -t" in result.stderr


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (403, "viewers start no programs in attempts"),
        (409, "attempt 1 of task 7/main.0 is PENDING: it does not run"),
        (409, "pool default allows no exec"),
    ],
)
def test_refusal_of_the_api_is_one_line_and_255(environment: Api, status: int, detail: str) -> None:
    environment.answer(f"GET /api/v1/attempts/{UID}", {"uid": UID, "number": 1})
    problem = {"title": "Refused", "status": status, "detail": detail}
    environment.answer(f"POST /api/v1/attempts/{UID}/exec", problem, status)
    result = call("-i", UID, "--", "ls", "-l")
    assert (result.exit_code, result.stderr) == (255, f"cellrun: {detail} [{status}]\n")
    assert environment.requests[-1][3] == {"command": ["ls", "-l"], "tty": False, "stdin": True}


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closed_stream_does_not_become_a_connection(environment: Api, closed: int) -> None:
    environment.answer(f"GET /api/v1/attempts/{UID}", {"uid": UID, "number": 1})
    environment.answer(f"POST /api/v1/attempts/{UID}/exec", {"uid": "s"})
    script = f'exec "$@" {closed}>&-'
    words = [sys.executable, "-c", STREAM % UID, str(closed)]
    process = subprocess.run(
        ["sh", "-c", script, "sh", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    errors = b"" if closed == 2 else b"cellrun: a reason\n"
    assert (process.returncode, process.stderr) == (7, errors)


def test_error_without_a_stream_for_it_has_its_code(environment: Api) -> None:
    words = [sys.executable, "-c", "from cellrun.cli import app; app()", "exec", UID]
    process = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *words], stdin=subprocess.DEVNULL, timeout=60
    )
    assert process.returncode == 255


def test_task_without_an_attempt_is_named(environment: Api) -> None:
    task = {**a_task(), "state": "PENDING"}
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(task))
    environment.answer(f"GET /api/v1/tasks/{task['id']}/attempts", a_page())
    result = call("7/main.0", "true")
    assert result.exit_code == 255
    assert "is PENDING: it does not run" in result.stderr


def test_unreachable_server_is_255(environment: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLRUN_URL", "http://127.0.0.1:1")
    result = call(UID, "true")
    assert result.exit_code == 255
    assert "no valid response from http://127.0.0.1:1" in result.stderr
