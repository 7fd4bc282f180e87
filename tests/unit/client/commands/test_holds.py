"""The commands queue, hold, release and move, and the holds on a job's page."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.unit.client.documents import AT, a_job, a_page
from tests.unit.client.stub_server import Api

HOLD = {"by": "ann", "reason": "wrong input", "since": AT, "role": "submitter", "project": None}


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_hold_requires_a_reason_and_sends_it_for_each_job(environment: Api) -> None:
    for job_id in (7, 8):
        held = a_job(id=job_id, holds=[HOLD])
        environment.answer(f"POST /api/v1/jobs/{job_id}/hold", held)
    assert call("hold", "7").exit_code == 2
    assert not environment.requests
    result = call("hold", "7", "8", "--reason", "wrong input")
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith("job 7 (sweep): held by ann since ")
    assert first.endswith(": wrong input")
    assert second.startswith("job 8 (sweep): held by ann since ")
    assert [request[3] for request in environment.requests] == [{"reason": "wrong input"}] * 2


def test_release_shows_what_still_holds_the_job(environment: Api) -> None:
    of_project = {**HOLD, "by": "mara", "project": "default/vision"}
    environment.answer("POST /api/v1/jobs/7/release", a_job(holds=[of_project]))
    environment.answer("POST /api/v1/jobs/8/release", a_job(id=8))
    first, second = call("release", "7", "8").stdout.splitlines()
    assert first.startswith("job 7 (sweep): project default/vision held by mara since ")
    assert second == "job 8 (sweep): released"
    found = json.loads(call("release", "8", "--reason", "fixed", "-o", "json").stdout)
    assert [job["id"] for job in found] == [8]
    assert environment.requests[-1][3] == {"reason": "fixed"}


def test_move_names_the_end_of_the_band(environment: Api) -> None:
    environment.answer("POST /api/v1/jobs/7/move", a_job(queue_rank=-1))
    assert "--to or --band is missing" in call("move", "7").output
    assert not environment.requests
    result = call("move", "7", "--to", "front", "--reason", "demo")
    assert result.stdout == "job 7 (sweep) is at the front of band interactive\n"
    assert environment.requests[-1][3] == {"to": "front", "band": None, "reason": "demo"}
    result = call("move", "7", "--band", "interactive")
    assert result.stdout == "job 7 (sweep) is in band interactive\n"


@pytest.mark.parametrize(
    ("words", "hold", "text"),
    [
        (["hold", "vision", "--reason", "late"], {**HOLD, "project": "default/vision"}, "held by"),
        (["release", "vision"], None, "project default/vision is released"),
    ],
)
def test_project_is_held_and_released(
    environment: Api, words: list[str], hold: Any, text: str
) -> None:
    path = f"POST /api/v1/projects/default/vision/{words[0]}"
    environment.answer(path, {"name": "default/vision", "hold": hold})
    result = call("project", *words)
    assert result.exit_code == 0, result.output
    assert text in result.stdout


def test_job_page_shows_the_holds(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(holds=[HOLD]))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page())
    line = call("job", "7").stdout.splitlines()[1]
    assert line.startswith("held by ann since ")
    assert line.endswith(": wrong input")


def test_queue_lists_positions_with_shares_and_reasons(environment: Api) -> None:
    entry = {
        "position": 2,
        "job": 7,
        "name": "sweep",
        "group": "main",
        "band": "batch",
        "rank": -1,
        "owner": "ann",
        "project": "default/vision",
        "share": 0.256,
        "waiting": 12,
        "since": AT,
        "reason": {"code": "insufficient_resources", "text": "no cell has enough free capacity"},
    }
    environment.answer("GET /api/v1/pools/gpu/queue", {"results": [entry], "next": None})
    head, line = call("queue", "gpu", "-o", "wide").stdout.splitlines()
    assert head.split()[:3] == ["POSITION", "JOB", "GROUP"]
    for part in ("2", "7 sweep (moved)", "batch", "12", "ann", "26%", "no cell has enough"):
        assert part in line
    assert "26%" not in call("queue", "gpu").stdout
    environment.answer("GET /api/v1/pools/default/queue", {"results": [], "next": None})
    assert call("queue").stdout == "nothing that you may read waits in pool default\n"
