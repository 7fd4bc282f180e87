"""A store in a folder keeps space free: uploads and new jobs are refused below it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from controlplane import clock
from controlplane.api.operators import health
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.artifacts import path_of
from controlplane.models import Attempt, Cell, Job, Task
from tests.integration.api.conftest import Answer, Caller, change_setting
from tests.integration.api.test_artifacts import digest, put, signed
from tests.integration.api.test_logs import upload
from tests.integration.api.test_reading import place, submit

JOB: dict[str, Any] = {"name": "a", "image": "busybox", "command": ["true"]}
TASK: dict[str, Any] = {"guid": "one", "domain": "x", "definition": {"image": "busybox"}}
MORE_THAN_ANY_DISK = 1_000_000_000  # MiB


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


@pytest.fixture
def attempt(submitter: Caller, cell: Cell) -> Attempt:
    submit(submitter)
    return place(Task.objects.get(), cell)


@pytest.fixture
def full(settings: Any, attempt: Attempt) -> None:
    change_setting(settings, store_min_free_mib=MORE_THAN_ANY_DISK)


def announce(cell: Cell, attempt: Attempt, size: int) -> Answer:
    """Announce an artifact of that size as a cell does."""
    path = f"{path_of(str(attempt.uid), 'a')}?size={size}&sha256={digest(b'')}"
    return Caller(None).send("POST", path.removeprefix("/api/v1"), **signed(cell, path, b""))


def check_refused(answer: Answer, status: int) -> None:
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "CELLRUN_STORE_MIN_FREE_MIB" in answer.json["detail"]
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.usefixtures("full")
def test_uploads_are_refused_with_507_and_store_nothing(
    tmp_path: Path, attempt: Attempt, cell: Cell
) -> None:
    check_refused(put(cell, attempt.uid, "a", b"content"), 507)
    check_refused(upload(cell, attempt.uid, b"output"), 507)
    check_refused(announce(cell, attempt, 5), 507)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_upload_continues_once_space_is_free(settings: Any, attempt: Attempt, cell: Cell) -> None:
    assert put(cell, attempt.uid, "a", b"con", whole=b"content").json == {"size": 3}
    before = settings.CELLRUN
    change_setting(settings, store_min_free_mib=MORE_THAN_ANY_DISK)
    answer = put(cell, attempt.uid, "a", b"tent", whole=b"content", offset=3)
    check_refused(answer, 507)
    settings.CELLRUN = before
    answer = put(cell, attempt.uid, "a", b"tent", whole=b"content", offset=3)
    assert (answer.status, answer.json) == (200, {"size": 7})


@pytest.mark.usefixtures("full")
def test_submissions_are_refused_with_503_and_create_nothing(submitter: Caller) -> None:
    count = Job.objects.count()
    for path, body in (
        ("/jobs", JOB),
        ("/jobs:batch", {"jobs": [JOB]}),
        ("/jobs:dry-run", JOB),
        ("/tasks", TASK),
    ):
        check_refused(submitter.post(path, body), 503)
    assert Job.objects.count() == count


def test_retry_is_refused_and_a_submitted_job_is_still_found(
    submitter: Caller, settings: Any
) -> None:
    body = {**JOB, "guid": "one"}
    job = submitter.post("/jobs", body).json["id"]
    cancel_job(job_id=job, reason="", force=False, actor="ann", now=clock.now())
    change_setting(settings, store_min_free_mib=MORE_THAN_ANY_DISK)
    check_refused(submitter.post(f"/jobs/{job}/retry"), 503)
    again = submitter.post("/jobs", body)
    assert (again.status, again.json["id"]) == (200, job)


@pytest.mark.usefixtures("full")
def test_file_that_would_leave_too_little_space_is_refused_when_announced(
    settings: Any, attempt: Attempt, cell: Cell
) -> None:
    change_setting(settings, store_min_free_mib=1, max_artifact_mib=MORE_THAN_ANY_DISK)
    check_refused(announce(cell, attempt, 2**50), 507)
    assert put(cell, attempt.uid, "a", b"small").status == 200


def test_zero_switches_the_floor_off(
    settings: Any, submitter: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_setting(settings, store_min_free_mib=0)
    monkeypatch.setattr("os.statvfs", None)
    assert submitter.post("/jobs", JOB).status == 201


def test_readyz_names_the_full_store(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.0)
    before = settings.CELLRUN
    for floor in (1, MORE_THAN_ANY_DISK, 1):
        settings.CELLRUN = before
        change_setting(settings, store_min_free_mib=floor)
        answer = Client().get("/readyz").json()["checks"]["store"]
        assert (answer == "ok") is (floor == 1)
        assert ("CELLRUN_STORE_MIN_FREE_MIB" in answer) is (floor != 1)
