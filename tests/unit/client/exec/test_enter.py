"""`cellrun exec`: its words, and the errors before a program runs."""

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from cellrun.commands.jobs.enter import read_command
from tests.unit.client.documents import a_page, a_task
from tests.unit.client.stub_server import Api

UID = "01890a5d-ac96-774b-bcce-b302099a8057"


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
