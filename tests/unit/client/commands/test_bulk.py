"""`cellrun bulk`: the filter, the confirmation, the progress and the end of an operation."""

import json
import os
import signal
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.harness.terminal import read_until, terminal
from tests.unit.client.documents import a_bulk_operation, a_page
from tests.unit.client.stub_server import Api

PREVIEW, START = "POST /api/v1/bulk:preview", "POST /api/v1/bulk"
SHOW, STOP = "GET /api/v1/bulk/5", "POST /api/v1/bulk/5/stop"
CANCEL = ("bulk", "cancel", "--project", "lab", "--reason", "wrong data")


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=typed)


def a_count(count: int = 2, **changes: Any) -> dict[str, Any]:
    job = {"id": 7, "name": "sweep", "state": "RUNNING", "project": "default/lab"}
    sample = [{**job, "id": 90 - number} for number in range(min(count, 10))]
    return {"count": count, "is_whole": True, "sample": sample, **changes}


def serve(api: Api, **ended: Any) -> None:
    api.answer(PREVIEW, a_count())
    api.answer(START, a_bulk_operation(), 202)
    api.answer(SHOW, a_bulk_operation(state="done", done=2, **ended))


def sent(api: Api, name: str) -> list[Any]:
    return [request[3] for request in api.requests if request[0] == name]


@pytest.mark.parametrize("action", ["cancel", "retry", "delete", "hold", "release"])
def test_action_is_started_with_filter_and_reason_and_followed(
    environment: Api, action: str
) -> None:
    serve(environment, action=action)
    words = ("--pool", "gpu", "--name", "sweep", "--label", "team=x", "--label", "sweep=7=8")
    states = ("--state", "running", "--state", "PENDING")
    result = call("bulk", action, *words, *states, "--reason", "wrong data", "--yes")
    assert result.exit_code == 0, result.output
    jobs = {
        "project": None,
        "pool": "gpu",
        "name": "sweep",
        "labels": {"team": "x", "sweep": "7=8"},
        "states": ["RUNNING", "PENDING"],
    }
    assert sent(environment, PREVIEW) == [{"action": action, "filter": jobs}]
    expected = {"action": action, "filter": jobs, "reason": "wrong data"}
    assert sent(environment, START) == [expected]
    assert result.stdout.startswith("bulk operation 5 is done: 2 jobs ")


def test_preview_shows_the_number_of_jobs_and_the_newest_ones(environment: Api) -> None:
    environment.answer(PREVIEW, a_count(1234))
    result = call("bulk", "cancel", "--project", "lab", "--dry-run")
    lines = result.stdout.splitlines()
    assert (result.exit_code, lines[0]) == (0, "1,234 jobs to cancel")
    assert lines[2].split() == ["90", "sweep", "running", "default/lab"]
    assert lines[-1] == "… and 1,224 jobs more"
    environment.answer(PREVIEW, a_count(3, is_whole=False))
    call("bulk", "cancel", "--project", "lab", "--dry-run")
    result = call("bulk", "cancel", "--project", "lab", "--dry-run")
    assert "3 jobs to cancel among the newest 10,000; older ones were not counted" in result.stdout
    found = json.loads(call("bulk", "cancel", "--pool", "gpu", "--dry-run", "-o", "json").stdout)
    assert found["count"] == 3
    assert sent(environment, START) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "at least one of --project, --pool, --name and --label is required"),
        (("--state", "running"), "at least one of --project, --pool, --name and --label"),
        (("--project", ""), "--project: is empty"),
        (("--label", "team"), "--label team: must be NAME=VALUE"),
        (("--label", "=x"), "--label =x: must be NAME=VALUE"),
        (("--label", "a=1", "--label", "a=2"), "a has two values"),
    ],
)
def test_wrong_filter_is_refused_without_a_request(
    environment: Api, words: tuple[str, ...], expected: str
) -> None:
    result = call("bulk", "delete", *words, "--reason", "old", "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr
    assert environment.requests == []


@pytest.mark.parametrize("reason", [(), ("--reason", " ")])
def test_operation_needs_a_reason(environment: Api, reason: tuple[str, ...]) -> None:
    result = call("bulk", "cancel", "--project", "lab", *reason, "--yes")
    assert (result.exit_code, environment.requests) == (2, [])
    assert "--reason is missing" in result.stderr


def test_without_a_terminal_the_operation_needs_the_option_yes(environment: Api) -> None:
    serve(environment)
    result = call(*CANCEL, typed="y\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "confirm with --yes" in result.stderr
    assert environment.requests == []


def test_nothing_is_started_if_no_job_matches(environment: Api) -> None:
    environment.answer(PREVIEW, a_count(0))
    result = call(*CANCEL, "--yes")
    assert result.exit_code == 2
    assert "there is no job to cancel that matches and that you may change" in result.stderr
    assert sent(environment, START) == []


def test_refused_jobs_are_listed_and_fail_the_command(environment: Api) -> None:
    refusals = [{"job": 90, "text": "job 90 has ended"}]
    serve(environment, refused=21, refusals=refusals)
    result = call(*CANCEL, "--yes")
    first, *lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert first == "bulk operation 5 is done: 2 jobs cancelled, 21 refused"
    assert lines[1].split(maxsplit=1) == ["90", "job 90 has ended"]
    assert lines[2] == "… and 20 jobs more"


def test_stopped_operation_fails_the_command_that_follows_it(environment: Api) -> None:
    serve(environment)
    ended = a_bulk_operation(state="stopped", done=1, ended_because="stopped by olga")
    environment.answers[SHOW].clear()
    environment.answer(SHOW, ended)
    result = call(*CANCEL, "--yes")
    assert result.exit_code == 1
    expected = "bulk operation 5 is stopped (stopped by olga): 1 job cancelled\n"
    assert result.stdout == expected


def test_json_is_the_operation_at_its_end(environment: Api) -> None:
    serve(environment)
    result = call(*CANCEL, "--yes", "-o", "json")
    assert json.loads(result.stdout)["state"] == "done"
    assert "2 jobs to cancel" in result.stderr


def test_operation_that_is_not_followed_names_the_commands_to_do_so(environment: Api) -> None:
    serve(environment)
    result = call(*CANCEL, "--yes", "--no-wait")
    assert result.exit_code == 0
    assert "`cellrun bulk show 5 --follow`" in result.stdout
    assert "`cellrun bulk stop 5`" in result.stdout
    assert sent(environment, SHOW) == []


def test_operations_are_listed_shown_and_stopped(environment: Api) -> None:
    stopped = a_bulk_operation(state="stopped", ended_because="stopped by olga", done=3)
    environment.answer("GET /api/v1/bulk", a_page(a_bulk_operation(expected=9, done=4)))
    environment.answer(SHOW, a_bulk_operation(expected=9, done=4))
    environment.answer(STOP, stopped)
    line = call("bulk", "list").stdout.splitlines()[1]
    for part in ("5", "cancel", "running", "4", "project default/lab", "ann", "wrong data"):
        assert part in line
    page = call("bulk", "show", "5").stdout
    assert "4 of about 9 jobs cancelled" in page
    expected = "bulk operation 5 is stopped (stopped by olga): 3 jobs cancelled\n"
    assert call("bulk", "stop", "5").stdout == expected


def test_follow_waits_for_the_end_of_a_running_operation(environment: Api) -> None:
    environment.answer(SHOW, a_bulk_operation(expected=9, done=4))
    environment.answer(SHOW, a_bulk_operation(state="done", expected=9, done=9))
    result = call("bulk", "show", "5", "--follow")
    assert (result.exit_code, result.stdout) == (
        0,
        "bulk operation 5 is done: 9 jobs cancelled\n",
    )


@pytest.mark.parametrize(("typed", "code", "starts"), [(b"y\n", 0, 1), (b"n\n", 1, 0)])
def test_terminal_prompts_before_the_start(
    environment: Api, typed: bytes, code: int, starts: int
) -> None:
    serve(environment)
    with terminal(*CANCEL) as (process, reader):
        prompt = read_until(reader, b"[y/N]")
        assert b"2 jobs to cancel" in prompt
        assert b"Cancel these jobs?" in prompt
        assert sent(environment, START) == []
        os.write(reader, typed)
        read_until(reader, b"is done: 2 jobs cancelled")
        assert process.wait(timeout=30) == code
    assert len(sent(environment, START)) == starts


def test_interrupted_command_leaves_the_operation_running(environment: Api) -> None:
    serve(environment)
    environment.answers[SHOW].clear()
    environment.answer(SHOW, a_bulk_operation(expected=9, done=4))
    with terminal(*CANCEL, "--yes") as (process, reader):
        read_until(reader, b"4 of about 9 jobs cancelled")
        process.send_signal(signal.SIGINT)
        shown = read_until(reader, b"interrupted")
        assert process.wait(timeout=30) == 130
    assert b"`cellrun bulk show 5 --follow` follows it" in shown
    assert b"`cellrun bulk stop 5` stops it" in shown
    assert sent(environment, STOP) == []
