"""The commands retry, delete and release-attempt, and the links of a job's page to other jobs."""

import json

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.unit.client.documents import a_job, a_page
from tests.unit.client.stub_server import Api

UID = "01890a5d-ac96-774b-bcce-b302099a8057"


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=typed)


def test_retry_prints_the_new_job(environment: Api) -> None:
    counts = {"main": {"phase": {"PENDING": 2}}, "whole": {"phase": {}}}
    made = a_job(id=8, retry_of=7, state="PENDING", task_status_count=counts)
    environment.answer("POST /api/v1/jobs/7/retry", made, 201)
    result = call("retry", "7")
    assert (result.exit_code, result.stdout) == (0, "job 8 (sweep) retries 2 tasks of job 7\n")
    assert "Idempotency-Key" not in environment.requests[-1][2]
    assert json.loads(call("retry", "7", "--key", "again", "-o", "json").stdout)["retry_of"] == 7
    assert environment.requests[-1][2]["Idempotency-Key"] == "again"


def test_refused_retry_is_one_line(environment: Api) -> None:
    problem = {"title": "Conflict", "detail": "job 7 has not ended: retry it after its end"}
    environment.answer("POST /api/v1/jobs/7/retry", problem, 409)
    result = call("retry", "7")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "cellrun: job 7 has not ended: retry it after its end [409]\n"


@pytest.mark.parametrize("typed", ["n\n", ""])
def test_delete_without_confirmation_deletes_nothing(environment: Api, typed: str) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(state="FAILED"))
    result = call("delete", "7", typed=typed)
    assert result.exit_code == 1
    assert "Delete job 7 (sweep, failed) with its tasks, history and output?" in result.stderr
    assert result.stdout == ""
    assert [name for name, *_ in environment.requests] == ["GET /api/v1/jobs/7"]


def test_delete_deletes_the_job_after_confirmation(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(state="FAILED"))
    environment.answer("DELETE /api/v1/jobs/7", b"", 204)
    assert call("delete", "7", typed="y\n").stdout == "job 7 is deleted\n"
    result = call("delete", "7", "--yes")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "job 7 is deleted\n", "")
    assert json.loads(call("delete", "7", "-y", "-o", "json").stdout)["id"] == 7
    assert sum(name == "DELETE /api/v1/jobs/7" for name, *_ in environment.requests) == 3


def test_release_requires_and_sends_a_reason(environment: Api) -> None:
    path = f"POST /api/v1/attempts/{UID}/release"
    environment.answer(path, {"uid": UID, "release_kind": "operator"})
    assert call("release-attempt", UID).exit_code == 2
    assert not environment.requests
    result = call("release-attempt", UID, "--reason", "scrap")
    assert (result.exit_code, result.stdout) == (0, f"attempt {UID} is released\n")
    assert environment.requests[-1][3] == {"reason": "scrap"}


def test_job_page_shows_relations_to_other_jobs(environment: Api) -> None:
    def wait(name: str, until: str, state: str) -> dict[str, object]:
        return {"job": 5, "name": name, "until": until, "state": state}

    waits = [
        wait("first", "succeeded", "open"),
        wait("5", "started", "met"),
        wait("6", "finished", "failed"),
    ]
    job = a_job(coscheduled=True, requeuing=True, parent=3, children=2, retry_of=4, waits_for=waits)
    environment.answer("GET /api/v1/jobs/7", job)
    environment.answer("GET /api/v1/jobs/7/tasks", a_page())
    lines = call("job", "7").stdout.splitlines()
    assert lines[1] == (
        "a gang, being requeued · a retry of job 4 · a child of job 3 · 2 children"
        " · waits until job first has succeeded · dependency met: job 5 has started"
        " · dependency failed: job 6 has not finished"
    )


def test_job_page_without_relations_has_no_relation_line(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job())
    environment.answer("GET /api/v1/jobs/7/tasks", a_page())
    assert call("job", "7").stdout.splitlines()[1] == ""
