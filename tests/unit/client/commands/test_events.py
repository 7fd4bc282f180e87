"""`cellrun events`: a line for each change, in the forms of `--output`."""

import json

import pytest
from typer.testing import CliRunner

from cellrun.api import events as followers
from cellrun.cli import app
from tests.unit.client.api.test_events import CALL, a_change
from tests.unit.client.documents import a_job
from tests.unit.client.stub_server import Api

BODY = a_change("p1") + a_change(
    "p2", **{"task": None, "task_id": None, "from": None, "to": "PENDING", "reason": "submitted"}
).replace(b"event: task", b"event: job")


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("name", ["7/main.0", "7"]),
        ("jsonpath=.reason", ["started", "submitted"]),
    ],
)
def test_changes_are_printed_in_the_form_of_output(
    environment: Api, output: str, lines: list[str]
) -> None:
    environment.answer(CALL, BODY)
    shown = CliRunner().invoke(app, ["events", "--no-follow", "-o", output])
    assert (shown.exit_code, shown.stdout.splitlines()) == (0, lines)


def test_change_is_a_line_with_both_states(environment: Api) -> None:
    environment.answer(CALL, BODY)
    shown = CliRunner().invoke(app, ["events", "--no-follow"])
    first, second = shown.stdout.splitlines()
    assert first.endswith("  7/main.0  pending → running  started")
    assert second.endswith("  job 7  pending  submitted")


def test_change_has_the_words_of_its_reason(environment: Api) -> None:
    environment.answer(CALL, a_change("p1", reason="placed", text="placed on a cell"))
    shown = CliRunner().invoke(app, ["events", "--no-follow"])
    assert shown.stdout.endswith("  placed on a cell\n")


def test_json_has_a_document_on_each_line(environment: Api) -> None:
    environment.answer(CALL, BODY)
    shown = CliRunner().invoke(app, ["events", "--no-follow", "-o", "json"])
    assert [json.loads(line)["to"] for line in shown.stdout.splitlines()] == ["RUNNING", "PENDING"]


def test_jobs_are_found_by_name_and_times_are_relative(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs", {"results": [a_job(id=9)], "next": None})
    environment.answer(CALL, BODY)
    shown = CliRunner().invoke(app, ["events", "nightly", "--no-follow", "--since", "10m"])
    assert shown.exit_code == 0
    query = environment.requests[-1][1]
    assert query.startswith("job=9&since=20")


def test_interruption_is_printed_once(environment: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "FIRST_PAUSE_SECONDS", 0.0)
    for _ in range(3):
        environment.answer(CALL, {"title": "Unavailable"}, 503, Retry_After="0")
    environment.answer(CALL, BODY)
    environment.answer(CALL, {"title": "Gone"}, 410)
    shown = CliRunner().invoke(app, ["events"])
    assert shown.stderr.count("Unavailable [503]; connecting again") == 1
    assert len(shown.stdout.splitlines()) == 2
