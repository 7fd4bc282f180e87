"""The command and the Python client against the real API, over HTTP, on a real database."""

import gc
import json
import threading
from collections.abc import Iterator
from datetime import date

import pytest
from pytest_django.live_server_helper import LiveServer
from typer.testing import CliRunner, Result

from cellrun import ApiError, Session
from cellrun.cli import app
from cellrun.settings import ClientSettings
from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.commands.state.attempt_uids import draw_uids
from controlplane.commands.tenancy.accounts import create_default_tenancy, create_user
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.states import TaskState
from controlplane.domain.roles import Role
from controlplane.models import Attempt, Cell, Project, Task, UsageTotal
from controlplane.storage.folder import append_log
from tests.harness.members import admit

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = {"name": "sweep", "image": "busybox", "command": ["true"], "replicas": 3}


def token_of(name: str, role: Role) -> str:
    user, _ = create_user(name=name, password=None, is_operator=role is Role.OPERATOR)
    if role is not Role.OPERATOR:
        admit(user, role)
    return create_api_token(user=user, name="test", role=role, now=clock.now())


@pytest.fixture(autouse=True)
def served(live_server: LiveServer) -> Iterator[None]:
    """Each test leaves when the server's threads have, with their connections to the database.

    A refusal's traceback keeps the client's end open, for as long as it lives.
    """
    earlier = set(threading.enumerate())  # of other servers, such as that of an object store
    yield
    gc.collect()
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name and thread not in earlier:
            thread.join(timeout=10)
            assert not thread.is_alive(), "a client still holds a connection to the server"


@pytest.fixture
def session(live_server: LiveServer, served: None) -> Iterator[Session]:
    create_default_tenancy()
    token = token_of("olga", Role.OPERATOR)
    with Session(ClientSettings(live_server.url, token)) as opened:
        yield opened


@pytest.fixture
def command(session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> CliRunner:
    token = str(session._http.headers["Authorization"]).removeprefix("Bearer ")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CELLRUN_URL", session.url)
    monkeypatch.setenv("CELLRUN_TOKEN", token)
    return CliRunner()


def call(command: CliRunner, *words: str, typed: str | None = None) -> Result:
    return command.invoke(app, list(words), input=typed)


def test_usage_is_shown_ranked_and_as_a_file(session: Session, command: CliRunner) -> None:
    for name, used in (("frugal", 3000.0), ("wasteful", 100.0)):
        UsageTotal.objects.create(
            month=date(2031, 5, 1), project=Project.objects.get(), owner="ann", job_name=name,
            attempts=1, cpu_seconds_requested=3600.0, cpu_seconds_measured=3600.0,
            cpu_seconds_used=used,
        )  # fmt: skip
    words = ("usage", "--month", "2031-05", "--by", "job")
    _, first, second = call(command, *words).stdout.splitlines()
    assert (first.split()[:3], second.split()[:3]) == (["wasteful", "1", "1"], ["frugal", "1", "1"])
    assert [row["job"] for row in session.usage(month="2031-05", by="job")] == [
        "wasteful",
        "frugal",
    ]
    file = call(command, *words, "--job", "fru", "--csv").stdout_bytes
    assert file.splitlines()[1:] == [b"frugal,1,0,3600.0,3000.0,600.0,0.0,0.0,0.0,0.0,0.0"]
    assert call(command, "usage", "--by", "cell").exit_code != 0


def test_submitted_job_and_its_tasks_are_read_back(session: Session) -> None:
    job = session.submit(SPEC)
    assert (job["name"], job["state"], job["spec"]) == ("sweep", "PENDING", SPEC)
    assert session.job(job["id"]) == job
    assert [(t["group"], t["index"]) for t in session.tasks(job["id"])] == [
        ("main", 0),
        ("main", 1),
        ("main", 2),
    ]


def test_same_guid_returns_the_same_job_and_another_body_is_refused(session: Session) -> None:
    first = session.submit({**SPEC, "guid": "g-1"})
    assert session.submit({**SPEC, "guid": "g-1"})["id"] == first["id"]
    with pytest.raises(ApiError) as caught:
        session.submit({**SPEC, "guid": "g-1", "replicas": 1})
    assert caught.value.status == 409


def test_lists_are_paginated(session: Session) -> None:
    ids = [session.submit({**SPEC, "name": f"job-{n}"})["id"] for n in range(5)]
    assert [job["id"] for job in session.jobs(limit=3)] == ids[:1:-1]
    page = session._call("GET", "/jobs", query={"limit": 2})
    assert [job["id"] for job in page["results"]] == ids[:2:-1]
    following = session._call("GET", page["next"])
    assert [job["id"] for job in following["results"]] == ids[2:0:-1]
    assert [job["name"] for job in session.jobs(name="job-3")] == ["job-3"]


def test_every_fault_is_printed_with_its_field(command: CliRunner) -> None:
    result = call(command, "submit", "-", typed="name: Bad_\nreplicas: 0\nimage: busybox")
    assert result.exit_code == 2
    assert "2 faults [422]" in result.stderr
    assert "\n  name: " in result.stderr
    assert "\n  replicas: " in result.stderr


def test_invalid_token_prints_one_line_and_a_missing_role_its_remedy(
    command: CliRunner, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll_cell(name="cell-1", pool="default", now=clock.now())
    monkeypatch.setenv("CELLRUN_TOKEN", token_of("ann", Role.SUBMITTER))
    refused = call(command, "drain", "cell-1")
    [cause, remedy] = refused.stderr.splitlines()
    assert (refused.exit_code, "[403]" in cause) == (2, True)
    assert "set CELLRUN_TOKEN to the token of an operator" in remedy
    monkeypatch.setenv("CELLRUN_TOKEN", "nonsense")
    unknown = call(command, "jobs").stderr
    assert (unknown.count("\n"), "[401]" in unknown) == (1, True)


def test_a_job_is_listed_shown_cancelled_and_waited_for(command: CliRunner) -> None:
    submitted = call(command, "submit", "-", "-o", "json", typed=json.dumps(SPEC))
    job_id = str(json.loads(submitted.stdout)["id"])
    assert "3 pending" in call(command, "jobs", "--state", "pending").stdout
    shown = call(command, "job", job_id)
    assert "main.2" in shown.stdout
    assert "waits for its turn: no placement pass has considered it yet" in shown.stdout
    explained = json.loads(call(command, "explain", job_id, "-o", "json").stdout)
    assert explained[0]["reason"]["code"] == "queue_position"

    cancelled = call(command, "cancel", job_id, "--reason", "wrong input")
    assert (cancelled.exit_code, cancelled.stderr) == (0, "")
    waited = call(command, "wait", job_id, "--deadline", "20")
    assert waited.exit_code == 1
    assert "killed (3 of 3 tasks ended)" in waited.stderr


def test_history_command_shows_jobs_tasks_and_attempts(
    command: CliRunner, session: Session
) -> None:
    job = session.submit({**SPEC, "replicas": 40})
    session.cancel_job(job["id"], reason="wrong input")
    shown = call(command, "history", str(job["id"]))
    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert [line.split()[2:4] for line in lines[1:]] == [
        ["job", "pending"],
        ["40", "tasks"],
        ["job", "pending"],
    ]
    assert "task was cancelled: cancelled: wrong input" in lines[2]
    [task, *_] = session.tasks(job["id"])
    entries = json.loads(call(command, "history", "--task", str(task["id"]), "-o", "json").stdout)
    assert [(item["to_state"], item["actor"]) for item in entries] == [
        ("KILLED", "olga"),
        ("PENDING", "olga"),
    ]
    whole = json.loads(call(command, "history", str(job["id"]), "--unmerged", "-o", "json").stdout)
    assert len(whole) == 42
    assert len(list(session.history("jobs", job["id"], merged=False, limit=7))) == 7
    other = session.submit({**SPEC, "replicas": 1})
    attempt = make_attempt(other["id"])
    assert call(command, "history", str(attempt.pk)).exit_code == 0
    assert "[404]" in call(command, "history", "4711").stderr


def test_cells_are_listed_and_unknown_ones_are_404(command: CliRunner) -> None:
    enroll_cell(name="cell-1", pool="default", now=clock.now())
    assert json.loads(call(command, "cells", "-o", "json").stdout)[0]["name"] == "cell-1"
    assert "[404]" in call(command, "drain", "nowhere").stderr


def test_pools_and_quotas_are_set_and_shown(command: CliRunner) -> None:
    made = call(command, "pools", "gpu", "--set", "sequencer=drf", "--set", "tokens.licence=4")
    assert (made.exit_code, made.stderr) == (0, "")
    assert [line.split()[:2] for line in call(command, "pools").stdout.splitlines()] == [
        ["POOL", "SEQUENCER"],
        ["default", "fifo"],
        ["gpu", "drf"],
    ]
    refused = call(command, "pools", "gpu", "--set", "selector=none")
    assert (refused.exit_code, "selector: none: not installed" in refused.stderr) == (2, True)

    limits = ["cpu=4", "memory=1Gi", "running_tasks=7"]
    done = call(command, "quota", "project", "default/default", *(f"--set={x}" for x in limits))
    assert (done.exit_code, done.stderr) == (0, "")
    assert call(command, "quota", "project", "default", "--set", "memory=2Gi").exit_code == 0
    found = json.loads(call(command, "quota", "project", "default", "-o", "json").stdout)
    assert found["resources"] == {"cpu": 4.0, "memory_mib": 2048}
    assert found["running_tasks"] == 7
    assert "project default/default" in call(command, "quota").stdout
    assert "there is no user nobody [404]" in call(command, "quota", "user", "nobody").stderr
    assert "[404]" in call(command, "quota", "team", "x").stderr


def test_logs_of_a_task_and_of_an_attempt_come_from_the_store(
    command: CliRunner, session: Session
) -> None:
    job = session.submit({**SPEC, "replicas": 1})
    attempt = make_attempt(job["id"])
    append_log(attempt.pk, "stdout", offset=0, content="grüß\ngott".encode())
    append_log(attempt.pk, "stderr", offset=0, content=b"warned\n")
    for name in (str(job["id"]), str(attempt.pk)):
        result = call(command, "logs", name)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "grüß\ngott\n", "warned\n")
    assert call(command, "logs", "--task", str(attempt.task_id)).stdout == "grüß\ngott\n"


def make_attempt(job_id: int) -> Attempt:
    """An attempt that succeeded, of the job's only task."""
    enroll_cell(name="cell-1", pool="default", now=clock.now())
    task, cell, now = Task.objects.get(job_id=job_id), Cell.objects.get(), clock.now()
    attempt = Attempt.objects.create(
        uid=draw_uids(1, now=now)[0],
        task=task,
        group_id=task.group_id,
        job_id=job_id,
        cell=cell,
        number=1,
        state=TaskState.SUCCEEDED,
        start_before=now,
        created_at=now,
        state_since=now,
        finished_at=now,
        released_at=now,
        release_kind="confirmed",
    )
    Task.objects.filter(pk=task.pk).update(
        state=TaskState.SUCCEEDED, finished_at=now, attempt_uid=attempt.pk, attempt_number=1
    )
    return Attempt.objects.get(pk=attempt.pk)
