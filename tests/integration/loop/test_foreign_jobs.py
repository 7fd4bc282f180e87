"""Explanations and forecasts do not name jobs of a project that their reader may not read."""

import json
from typing import Any

import pytest
from django.test import Client

from controlplane import clock
from controlplane.commands.callbacks import claim_callbacks
from controlplane.commands.tenancy.accounts import create_user
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState
from controlplane.domain.foreign_jobs import named_jobs, without_jobs
from controlplane.domain.roles import Role
from controlplane.models import Domain, Job, Membership, Pool, Project
from tests.harness.members import admit
from tests.integration.loop.conftest import Loop

BODY = {"name": "job", "image": "x", "command": ["true"], "project": "mine"}


class Reader:
    """A submitter of the project `mine` alone."""

    def __init__(self) -> None:
        self.user, _ = create_user(name="reader", password=None, is_operator=False)
        Project.objects.create(domain=Domain.objects.get(), name="mine")
        admit(self.user, Role.SUBMITTER, "mine")
        token = create_api_token(user=self.user, name="t", role=Role.SUBMITTER, now=clock.now())
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> Any:
        """The document at a path, and its text."""
        return json.loads(Client().get(f"/api/v1{path}", headers=self._headers).content)

    def post(self, path: str, body: Any) -> Any:
        """The document of a response."""
        answer = Client().post(
            f"/api/v1{path}", json.dumps(body), "application/json", headers=self._headers
        )
        return json.loads(answer.content)


@pytest.fixture
def reader(loop: Loop) -> Reader:
    return Reader()


def submit_here(loop: Loop, reader: Reader, **fields: Any) -> Job:
    """A job of the reader's project."""
    owner, loop.owner = loop.owner, reader.user
    try:
        return loop.submit(**{**BODY, **fields})
    finally:
        loop.owner = owner


def explain(reader: Reader, loop: Loop, job: Job) -> Any:
    return reader.get(f"/tasks/{loop.tasks(job)[0].pk}/explain")


def test_job_in_front_of_a_strict_queue_is_not_named(loop: Loop, reader: Reader) -> None:
    Pool.objects.update(strict_fifo=True, preemption=False)
    loop.cell("cell-1", 4000)
    loop.submit(resources={"cpu": 3, "memory": "64Mi"})
    loop.place()
    large = loop.submit(resources={"cpu": 2, "memory": "64Mi"})
    mine = submit_here(loop, reader)
    loop.place()
    found = explain(reader, loop, mine)
    assert found["reason"]["behind"] is None
    assert found["reason"]["text"] == (
        "waits behind a job of another project, which does not fit yet (the pool is strict)"
    )
    assert found["queue"]["behind"] == {"job": None, "name": None}
    assert found["queue"]["text"].endswith("behind a job of another project")
    listed = reader.get(f"/jobs/{mine.pk}/tasks")["results"][0]["pending_reason"]
    assert listed["text"] == found["text"]
    assert f"job {large.pk}" not in json.dumps([found, listed])
    # The same task, for a member of the other project as well.
    Membership.objects.filter(user=reader.user).update(project=None, domain=Domain.objects.get())
    found = explain(reader, loop, mine)
    assert found["reason"]["behind"] == large.pk
    assert f"job {large.pk}" in found["text"]


def test_forecast_counts_evictions_of_other_projects_without_names(
    loop: Loop, reader: Reader
) -> None:
    loop.cell("cell-1", 2000)
    loop.submit(band="batch", name="their-name")
    mine = submit_here(loop, reader, band="batch")
    loop.place()
    wanted = {**BODY, "band": "interactive", "resources": {"cpu": 2, "memory": "64Mi"}}
    evicts = reader.post("/jobs:dry-run", wanted)["evicts"]
    assert {(item["job"], item["name"], item["cell"]) for item in evicts} == {
        (None, None, "cell-1"),
        (mine.pk, "main.0", "cell-1"),
    }
    assert [item["task"] for item in evicts if item["job"] is None] == [None]


def test_evicted_task_does_not_name_the_preemptor_of_another_project(
    loop: Loop, reader: Reader
) -> None:
    cell = loop.cell("cell-1", 1000)
    fields: dict[str, Any] = {"band": "batch", "retries": {"preemption": 0}}
    mine = submit_here(loop, reader, callback={"url": "https://receiver.example/"}, **fields)
    loop.place()
    [attempt] = loop.attempts(mine)
    cell.report(AttemptReport(str(attempt.uid), 0, TaskState.RUNNING))
    theirs = loop.submit(band="production")
    loop.place()
    cell.report(AttemptReport(str(attempt.uid), 0, TaskState.KILLED, gone=True))
    [task] = loop.tasks(mine)
    paths = [
        "/jobs",
        f"/jobs/{mine.pk}",
        f"/jobs/{mine.pk}/tasks",
        f"/jobs/{mine.pk}/history",
        f"/tasks/{task.pk}",
        f"/tasks/{task.pk}/attempts",
        f"/tasks/{task.pk}/history",
        f"/tasks/{task.pk}/explain",
        f"/attempts/{attempt.uid}",
        f"/attempts/{attempt.uid}/history",
    ]
    texts = {path: json.dumps(reader.get(path)) for path in paths}
    assert [path for path, text in texts.items() if f"job {theirs.pk}" in text] == []
    assert "made room for a job of another project" in texts[f"/tasks/{task.pk}/history"]
    [callback] = claim_callbacks(now=clock.now()).items
    assert f"job {theirs.pk}" not in callback.body.decode()
    # The same documents for a member of the other project as well.
    Membership.objects.filter(user=reader.user).update(project=None, domain=Domain.objects.get())
    texts = {path: json.dumps(reader.get(path)) for path in paths}
    assert f"made room for job {theirs.pk} (production)" in texts[f"/tasks/{task.pk}/history"]
    assert f"job {theirs.pk}" in texts[f"/attempts/{attempt.uid}"]


def test_hidden_job_takes_its_task_along_and_own_texts_stay() -> None:
    document = {
        "message": "the result is that of job 12, task 7",
        "failure_reason": "made room for job 12 (production)",
        "spec": {"text": "job 12"},
        "annotation": {"message": "job 12", "job": 12},
    }
    assert set(named_jobs(document)) == {12}
    assert without_jobs(document, {12}) == {
        "message": "the result is that of a job of another project",
        "failure_reason": "made room for a job of another project (production)",
        "spec": {"text": "job 12"},
        "annotation": {"message": "job 12", "job": 12},
    }


def test_ids_are_whole_numbers_of_texts() -> None:
    document = {
        "text": "waits behind job 12, then job 1 of cell job12",
        "also": [{"text": "job 120", "behind": 12}],
        "own": {"job": 1, "name": "x", "shared": False},
    }
    assert set(named_jobs(document)) == {12, 1, 120}
    assert without_jobs(document, {1}) == {
        "text": "waits behind job 12, then a job of another project of cell job12",
        "also": [{"text": "job 120", "behind": 12}],
        "own": {"job": None, "name": None, "shared": False},
    }
