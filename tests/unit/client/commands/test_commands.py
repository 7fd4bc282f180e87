"""The command as people call it: its exit codes, its two outputs, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from cellrun.commands.jobs.submit import _name_after
from cellrun.settings import load_settings
from controlplane.spec import parse_job
from tests.unit.client.documents import AT, a_cell, a_job, a_page, a_task
from tests.unit.client.stub_server import Api

UID = "01890a5d-ac96-774b-bcce-b302099a8057"


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=typed)


def test_missing_configuration_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("CELLRUN_URL", raising=False)
    result = call("jobs")
    assert result.exit_code == 2
    assert result.stderr == (
        "cellrun: no server is configured: run `cellrun login URL`, or set CELLRUN_URL\n"
    )


def test_unreachable_server_is_one_line_and_exit_code_2_in_a_process(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "CELLRUN_TOKEN": "t"}
    done = subprocess.run(
        [sys.executable, "-c", "from cellrun.cli import app; app()", "job", "7"],
        env={**environ, "CELLRUN_URL": "http://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "cellrun: no valid response from http://127.0.0.1:1: connection refused\n"


def test_refused_submission_names_the_field_with_exit_code_2(environment: Api) -> None:
    fault = {"field": "image", "detail": "is required"}
    environment.answer("POST /api/v1/jobs", {"title": "Unprocessable", "errors": [fault]}, 422)
    result = call("submit", "-", typed="name: x")
    assert result.exit_code == 2
    assert result.stderr == "cellrun: image: is required [422]\n"


def test_login_stores_only_a_valid_token(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("CELLRUN_TOKEN", raising=False)
    api.answer("GET /api/v1/jobs", {"title": "Unauthorized"}, 401)
    api.answer("GET /api/v1/jobs", a_page())
    assert call("login", api.url, typed="my-token\n").exit_code == 2
    assert not list(tmp_path.rglob("*.toml"))
    result = call("login", api.url + "/", typed="my-token\n")
    assert result.exit_code == 0, result.output
    settings = load_settings({"XDG_CONFIG_HOME": str(tmp_path)})
    assert (settings.url, settings.token) == (api.url, "my-token")
    assert api.requests[-1][2]["Authorization"] == "Bearer my-token"


def test_login_stores_a_profile_for_later_commands(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CELLRUN_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("CELLRUN_TOKEN", "of-another-server")
    api.answer("GET /api/v1/jobs", a_page())
    assert call("--profile", "far", "login", api.url, "--token", "mine").exit_code == 0
    assert call("--profile", "far", "jobs").exit_code == 0
    assert api.requests[-1][2]["Authorization"] == "Bearer mine"
    assert call("jobs").exit_code == 2  # the profile applied to one command
    listed = call("--profile", "far", "profiles", "-o", "json")
    assert json.loads(listed.stdout) == [{"name": "far", "url": api.url, "current": True}]
    assert "mine" not in listed.stdout
    unknown = call("--profile", "fra", "jobs")
    assert (unknown.exit_code, "profiles: far" in unknown.stderr) == (2, True)


def test_submit_sends_the_file_with_its_changes(environment: Api, tmp_path: Path) -> None:
    environment.answer("POST /api/v1/jobs", a_job(state="PENDING"), 201)
    file = tmp_path / "job.yaml"
    file.write_text("name: sweep\nimage: busybox")
    result = call("submit", str(file), "--set", "replicas=3")
    assert (result.exit_code, result.stdout) == (0, "job 7 (sweep) is pending\n")
    assert environment.requests[0][3] == {"name": "sweep", "image": "busybox", "replicas": 3}


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("KILLED", 1)])
def test_submit_with_wait_exits_with_0_only_on_success(
    environment: Api, state: str, code: int
) -> None:
    ended = a_job(state=state, failure_reason="because" if code else "")
    environment.answer("POST /api/v1/jobs", a_job(), 201)
    environment.answer("GET /api/v1/jobs/7", ended)
    result = call("submit", "-", "--wait", "-o", "json", typed="name: x")
    assert result.exit_code == code
    assert json.loads(result.stdout) == ended
    assert ("because" in result.stderr) == bool(code)
    assert call("wait", "7").exit_code == code


def test_wait_for_several_jobs_requires_all_to_succeed(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(state="SUCCEEDED"))
    environment.answer("GET /api/v1/jobs/8", a_job(id=8, state="FAILED"))
    ended = (a_job(id=8, state="FAILED"), a_job(state="SUCCEEDED"))
    environment.answer("GET /api/v1/jobs", a_page(*ended))
    result = call("wait", "7", "8", "-o", "json")
    assert result.exit_code == 1
    assert [job["id"] for job in json.loads(result.stdout)] == [7, 8]
    assert "job 8 failed" in result.stderr


def test_wait_past_its_deadline_exits_with_2(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job())
    result = call("wait", "7", "--deadline", "0.1")
    assert result.exit_code == 2
    assert "gave up waiting for job 7 at the deadline" in result.stderr


def serve_run(api: Api, *, state: str, exit_code: int | None) -> None:
    job_state = "SUCCEEDED" if state == "SUCCEEDED" else "FAILED"
    task = a_task(state=state, attempt_number=1, attempt_uid=UID, exit_code=exit_code)
    api.answer("POST /api/v1/jobs", a_job(state="PENDING"), 201)
    api.answer("GET /api/v1/jobs/7", a_job(state=job_state))
    api.answer("GET /api/v1/jobs/7/tasks", a_page(task))
    attempt = {"uid": UID, "state": state, "released_at": AT}
    api.answer(f"GET /api/v1/attempts/{UID}", attempt)
    # Standard output, its end, standard error, its end.
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"out\n", X_Next_Cursor="4")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="4")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"err", X_Next_Cursor="3")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="3")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="4")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="3")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="4")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="3")


def test_run_submits_follows_the_logs_and_exits_with_0(environment: Api) -> None:
    serve_run(environment, state="SUCCEEDED", exit_code=0)
    result = call(
        "run", "repo/busybox:1", "--cpu", "0.5", "--memory", "64Mi", "--env", "A=b=c",
        "--timeout", "60", "--", "sh", "-c", "echo out",
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "out\n")
    assert result.stderr == "job 7 (sweep)\nerr\n"
    sent = environment.requests[0][3]
    assert sent.pop("name").startswith("busybox-")
    assert sent == {
        "image": "repo/busybox:1",
        "command": ["sh", "-c", "echo out"],
        "replicas": 1,
        "env": {"A": "b=c"},
        "resources": {"cpu": 0.5, "memory": "64Mi"},
        "timeout_seconds": 60.0,
    }


def test_run_sends_constraints_and_resources(environment: Api) -> None:
    serve_run(environment, state="SUCCEEDED", exit_code=0)
    result = call(
        "run", "busybox", "--gpu", "1", "--resource", "licence=2", "--constraint", "zone=a,b",
        "--constraint", "!spot", "--prefer", "gb>=64", "--tag", "quiet",
        "--concurrency", "customer-42=2", "--", "true",
    )  # fmt: skip
    assert result.exit_code == 0
    sent = environment.requests[0][3]
    assert sent["resources"] == {"gpu": 1, "licence": 2}
    assert sent["placement_tags"] == ["quiet"]
    assert sent["concurrency"] == {"key": "customer-42", "limit": 2}
    assert sent["constraints"] == [
        {"key": "zone", "op": "in", "values": ["a", "b"], "required": True},
        {"key": "spot", "op": "not_exists", "required": True},
        {"key": "gb", "op": "ge", "values": ["64"], "required": False},
    ]
    assert parse_job(sent).constraints[2].values == ["64"]
    wrong = call("run", "busybox", "--resource", "licence", "--", "true")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "cellrun: --resource 'licence': expected NAME=NUMBER\n",
    )


def test_run_exits_with_the_exit_code_of_the_task(environment: Api) -> None:
    serve_run(environment, state="FAILED", exit_code=42)
    result = call("run", "busybox", "--name", "x", "--", "false")
    assert result.exit_code == 42
    assert "failed" in result.stderr


def test_run_exits_with_1_without_an_exit_code(environment: Api) -> None:
    serve_run(environment, state="WORKER_FAILED", exit_code=None)
    assert call("run", "busybox", "--", "true").exit_code == 1


def test_run_of_a_process_sends_no_image(environment: Api) -> None:
    serve_run(environment, state="SUCCEEDED", exit_code=0)
    result = call("run", "--process", "--name", "p", "--", "echo", "hi")
    assert result.exit_code == 0
    sent = environment.requests[0][3]
    assert sent == {
        "name": "p",
        "task_type": "process",
        "command": ["echo", "hi"],
        "replicas": 1,
    }


def test_generated_run_names_are_valid(environment: Api) -> None:
    for word in ("busybox", "ghcr.io/Team/Tool_x:1.2@sha256:aa", "/bin/[", ""):
        name = _name_after(word)
        assert name[0].isalnum()
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")


def test_jobs_and_cells_are_listed(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs", a_page(a_job()))
    environment.answer("GET /api/v1/cells", a_page(a_cell(state="DRAINING", state_reason="by me")))
    assert "1 pending, 1 running" in call("jobs", "--state", "running").stdout
    assert environment.requests[0][1] == "state=running&limit=20"
    assert "draining" in call("cells").stdout
    assert "by me" in call("cells").stdout
    assert json.loads(call("cells", "-o", "json").stdout)[0]["name"] == "cell-1"


def test_job_shows_its_tasks(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job())
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(a_task(), a_task(index=1)))
    assert "main.1" in call("job", "7").stdout
    assert [
        task["index"] for task in json.loads(call("job", "7", "-o", "json").stdout)["tasks"]
    ] == [
        0,
        1,
    ]


def test_logs_of_several_tasks_are_prefixed_with_the_task(environment: Api) -> None:
    tasks = [
        a_task(id=70 + n, index=n, state="SUCCEEDED", attempt_number=1, attempt_uid=f"u-{n}")
        for n in range(2)
    ]
    environment.answer("GET /api/v1/jobs/7", a_job(state="SUCCEEDED"))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(*tasks))
    for n in range(2):
        environment.answer(f"GET /api/v1/attempts/u-{n}/logs", b"hi\n", X_Next_Cursor="3")
        environment.answer(f"GET /api/v1/attempts/u-{n}/logs", b"", X_Next_Cursor="3")
        environment.answer(f"GET /api/v1/attempts/u-{n}/logs", b"", X_Next_Cursor="0")
        environment.answer(f"GET /api/v1/attempts/u-{n}", {"released_at": AT})
    assert call("logs", "7").stdout == "main.0 | hi\nmain.1 | hi\n"


def test_logs_of_an_attempt(environment: Api) -> None:
    attempt = {"uid": UID, "state": "RUNNING", "released_at": None}
    environment.answer(f"GET /api/v1/attempts/{UID}", attempt)
    environment.answer(f"GET /api/v1/attempts/{UID}/logs", b"half a li", X_Next_Cursor="9")
    environment.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="9")
    environment.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="0")
    result = call("logs", UID, "-o", "json")
    assert json.loads(result.stdout) == [{"task": UID, "stream": "stdout", "line": "half a li"}]


def test_number_is_a_task_only_with_the_option(environment: Api) -> None:
    environment.answer("GET /api/v1/tasks/70", a_task())
    environment.answer("GET /api/v1/tasks/70/explain", {"task": 70, "text": "lacks 2 cores"})
    assert "[404]" in call("explain", "70").stderr
    result = call("explain", "--task", "70")
    assert "lacks 2 cores" in result.stdout
    assert json.loads(call("explain", "--task", "70", "-o", "json").stdout)["task"] == 70


def test_explain_of_a_job_explains_one_pending_task_per_group(environment: Api) -> None:
    tasks = [a_task(id=70), a_task(id=71, index=1), a_task(id=72, group="b", state="RUNNING")]
    environment.answer("GET /api/v1/jobs/7", a_job())
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(*tasks))
    environment.answer("GET /api/v1/tasks/70/explain", {"task": 70, "text": "lacks 2 cores"})
    assert [item["task"] for item in json.loads(call("explain", "7", "-o", "json").stdout)] == [70]


def test_explain_of_a_job_without_pending_tasks_prints_its_state(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(state="SUCCEEDED"))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(a_task(state="SUCCEEDED")))
    assert "job 7 has no pending task; it is succeeded" in call("explain", "7").stdout


def test_cancel_and_drain_send_their_options(environment: Api) -> None:
    environment.answer("POST /api/v1/jobs/7/cancel", a_job(ending_as="KILLED"), 202)
    environment.answer("POST /api/v1/cells/cell-1/drain", a_cell(state="DRAINING"))
    result = call("cancel", "7", "--reason", "wrong input", "--force")
    assert (result.exit_code, result.stdout) == (0, "job 7 is being cancelled\n")
    assert environment.requests[0][3] == {"reason": "wrong input", "force": True}
    assert call("drain", "cell-1").stdout == "cell cell-1 is draining\n"
    assert environment.requests[1][3] == {"deadline_seconds": 3600.0, "reason": ""}
    call("drain", "cell-1", "--deadline", "0")
    call("drain", "cell-1", "--deadline", "-1")
    deadlines = [request[3]["deadline_seconds"] for request in environment.requests[2:]]
    assert deadlines == [0.0, None]


def test_version_is_printed() -> None:
    result = call("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("cellrun ")


def test_every_command_has_output_and_help() -> None:
    for name in ("login", "submit", "run", "jobs", "job", "wait", "logs", "explain", "history",
                 "cancel", "cells", "drain"):  # fmt: skip
        assert "--output" in call(name, "--help").stdout


def test_schedule_create_names_the_command_that_creates_schedules() -> None:
    shown = CliRunner().invoke(
        app, ["schedule", "create", "nightly", "job.yaml", "--cron", "@daily"]
    )
    assert shown.exit_code == 2
    assert "`cellrun schedule set NAME FILE --cron CRON`" in shown.stderr
