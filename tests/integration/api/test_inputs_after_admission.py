"""The store gets the inline inputs of a job when the job is admitted, and not before."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from controlplane.models import Job
from controlplane.storage.current import current_store
from controlplane.storage.interface import StoreUnavailable
from tests.integration.api.conftest import Caller, change_setting

CONTENT = "an input of a job"
JOB: dict[str, Any] = {
    "name": "with-input",
    "image": "busybox",
    "command": ["true"],
    "inputs": [{"path": "/in/text", "content": CONTENT}],
}
TASK: dict[str, Any] = {
    "guid": "guid-1",
    "domain": "tests",
    "definition": {name: value for name, value in JOB.items() if name != "name"},
}


def stored_files() -> list[Path]:
    """Return the files of the store."""
    folder: Path = django_settings.CELLRUN.store_folder
    return [path for path in folder.rglob("*") if path.is_file()]


def test_admitted_job_has_its_input_in_the_store(submitter: Caller) -> None:
    assert submitter.post("/jobs", JOB).status == 201
    digest = sha256(CONTENT.encode()).hexdigest()
    assert current_store().read_input(digest) == CONTENT.encode()


def exceed_the_cap(submitter: Caller, settings: Any) -> dict[str, Any]:
    change_setting(settings, max_unfinished_tasks_per_user=0)
    return {}


def take_the_name(submitter: Caller, settings: Any) -> dict[str, Any]:
    body = {name: value for name, value in JOB.items() if name != "inputs"}
    assert submitter.post("/jobs", body).status == 201
    return {"existing_job_policy": "error"}


def name_no_job(submitter: Caller, settings: Any) -> dict[str, Any]:
    return {"depends_on": [{"job": "unknown"}]}


def name_no_parent(submitter: Caller, settings: Any) -> dict[str, Any]:
    return {"parent": 4711}


def have_too_many_tasks(submitter: Caller, settings: Any) -> dict[str, Any]:
    change_setting(settings, max_tasks_per_job=1)
    return {"replicas": 2}


@pytest.mark.parametrize(
    ("prepare", "status"),
    [
        (exceed_the_cap, 422),
        (take_the_name, 409),
        (name_no_job, 422),
        (name_no_parent, 422),
        (have_too_many_tasks, 422),
    ],
)
def test_refused_job_leaves_no_file_in_the_store(
    submitter: Caller,
    settings: Any,
    prepare: Callable[[Caller, Any], dict[str, Any]],
    status: int,
) -> None:
    body = {**JOB, **prepare(submitter, settings)}
    count = Job.objects.count()
    assert submitter.post("/jobs", body).status == status
    assert stored_files() == []
    assert Job.objects.count() == count


def test_refused_batch_leaves_no_file_of_its_other_jobs(submitter: Caller, settings: Any) -> None:
    change_setting(settings, max_unfinished_tasks_per_user=1)
    assert submitter.post("/jobs:batch", {"jobs": [JOB, JOB]}).status == 422
    assert stored_files() == []


def test_refused_one_off_task_leaves_no_file_in_the_store(submitter: Caller, settings: Any) -> None:
    assert submitter.post("/tasks", TASK).status == 201
    [stored] = stored_files()
    stored.unlink()
    assert submitter.post("/tasks", TASK).status == 409
    change_setting(settings, max_unfinished_tasks_per_user=1)
    assert submitter.post("/tasks", {**TASK, "guid": "guid-2"}).status == 422
    assert stored_files() == []


def test_failure_of_the_store_leaves_no_job(
    submitter: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(content: bytes) -> str:
        raise StoreUnavailable("the store does not answer")

    monkeypatch.setattr(current_store(), "put_input", fail)
    assert submitter.post("/jobs", JOB).status == 503
    assert Job.objects.count() == 0
