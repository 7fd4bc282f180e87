"""Retry, deletion and release over HTTP, and the links of a job's document to other jobs."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.states import TaskState
from controlplane.domain.roles import Role
from controlplane.domain.state.states import ReleaseKind
from controlplane.models import Alert, Attempt, Cell, Job, Task, Transition
from controlplane.storage.folder import append_log
from tests.integration.api.conftest import Caller, make_caller
from tests.integration.api.test_reading import place, submit


def cancel(job_id: int) -> None:
    """End a job; what was never placed leaves nothing to wait for."""
    cancel_job(job_id=job_id, reason="", force=False, actor="me", now=clock.now())


@pytest.fixture
def killed(submitter: Caller) -> int:
    """A job of two tasks that was cancelled before anything was placed."""
    job_id = submit(submitter, replicas=2)
    cancel(job_id)
    return job_id


def test_retry_is_a_new_job_that_names_the_retried_job(submitter: Caller, killed: int) -> None:
    answer = submitter.post(f"/jobs/{killed}/retry")
    assert answer.status == 201
    job = answer.json
    assert answer.headers["Location"].endswith(f"/api/v1/jobs/{job['id']}")
    assert (job["retry_of"], job["state"], job["name"]) == (killed, "PENDING", "hello")
    assert job["task_status_count"] == {"main": {"phase": {"PENDING": 2}}}
    assert submitter.get(f"/jobs/{killed}").json["retry_of"] is None


def test_same_idempotency_key_returns_the_same_retry(submitter: Caller, killed: int) -> None:
    first = submitter.post(f"/jobs/{killed}/retry", Idempotency_Key="again")
    second = submitter.post(f"/jobs/{killed}/retry", {}, Idempotency_Key="again")
    assert (first.status, second.status) == (201, 200)
    assert first.json == second.json
    assert first.json["guid"] == "again"
    other = submit(submitter)
    cancel(other)
    taken = submitter.post(f"/jobs/{other}/retry", Idempotency_Key="again")
    assert (taken.status, set(taken.faults)) == (409, {"guid"})
    wrong = submitter.post(f"/jobs/{killed}/retry", Idempotency_Key="ä b")
    assert (wrong.status, set(wrong.faults)) == (400, {"Idempotency-Key"})


def test_invalid_retry_is_refused_with_the_reason(submitter: Caller, killed: int) -> None:
    job_id = submit(submitter)
    open_ = submitter.post(f"/jobs/{job_id}/retry")
    assert (open_.status, open_.json["detail"]) == (
        409,
        f"job {job_id} has not ended: retry it after its end, or cancel it first",
    )
    assert submitter.post("/jobs/4711/retry").status == 404
    assert submitter.post(f"/jobs/{killed}/retry", {"force": True}).faults == {
        "force": "unknown field"
    }
    assert submitter.post(f"/jobs/{killed}/retry").status == 201
    twice = submitter.post(f"/jobs/{killed}/retry")
    assert twice.status == 409
    assert "retries the same tasks" in twice.json["detail"]


def test_only_the_submitter_a_manager_or_an_operator_can_retry_or_delete(
    operator: Caller, anonymous: Caller, killed: int
) -> None:
    outsider = make_caller("eve", Role.SUBMITTER)
    for method, path in (("POST", f"/jobs/{killed}/retry"), ("DELETE", f"/jobs/{killed}")):
        refused = outsider.send(method, path)
        assert refused.status == 403
        assert "only its submitter or a manager of its project may" in refused.json["detail"]
        assert anonymous.send(method, path).status == 401
    job = operator.post(f"/jobs/{killed}/retry").json
    # It stays its submitter's, even if an operator retries it.
    assert Job.objects.get(pk=job["id"]).owner.get_username() == "ann"
    assert Transition.objects.get(job_id=job["id"]).actor == "olga"


def test_deleted_job_is_not_found_by_any_endpoint(
    submitter: Caller, operator: Caller, make_cell: Callable[..., Cell]
) -> None:
    job_id = submit(submitter, guid="g", replicas=1)
    task = Task.objects.get(job_id=job_id)
    attempt = place(task, make_cell())
    append_log(attempt.pk, "stdout", offset=0, content=b"words")
    uid = attempt.pk
    now = clock.now()
    Attempt.objects.filter(pk=uid).update(
        state=TaskState.FAILED, finished_at=now, released_at=now, release_kind="confirmed"
    )
    Task.objects.filter(pk=task.pk).update(
        state=TaskState.FAILED, finished_at=now, attempt_open=False
    )
    child = submit(submitter, parent=job_id)
    paths = (
        f"/jobs/{job_id}",
        f"/jobs/{job_id}/tasks",
        f"/jobs/{job_id}/history",
        f"/tasks/{task.pk}",
        f"/tasks/{task.pk}/attempts",
        f"/tasks/{task.pk}/history",
        f"/tasks/{task.pk}/explain",
        f"/attempts/{uid}",
        f"/attempts/{uid}/history",
        f"/attempts/{uid}/logs",
        f"/attempts/{uid}/logs?follow=true",
    )
    for path in paths:
        assert submitter.get(path).status == 200, path
    refused = submitter.send("DELETE", f"/jobs/{job_id}")
    assert refused.status == 409
    assert refused.json["detail"] == f"job {job_id} has not ended: cancel it first"
    Job.objects.filter(pk=job_id).update(
        state=TaskState.FAILED, finished_at=now, settled_at=now, started_at=now
    )
    assert submitter.get(f"/jobs/{job_id}").json["children"] == 1
    assert submitter.send("DELETE", f"/jobs/{job_id}").status == 204
    for path in paths:
        answer = submitter.get(path)
        assert answer.status == 404, path
        assert answer.headers["Content-Type"] == "application/problem+json"
    for path in (f"/jobs/{job_id}/cancel", f"/jobs/{job_id}/retry", f"/tasks/{task.pk}/cancel"):
        assert operator.post(path).status == 404, path
    assert submitter.send("DELETE", f"/jobs/{job_id}").status == 404
    assert [job["id"] for job in submitter.get("/jobs").json["results"]] == [child]
    assert submitter.get(f"/jobs/{child}").json["parent"] is None
    unknown = submitter.post(
        "/jobs", {"name": "x", "image": "x", "depends_on": [{"job": "g"}], "parent": job_id}
    )
    assert set(unknown.faults) == {"depends_on[0].job", "parent"}
    assert submit(submitter, guid="g") != job_id


def test_job_document_lists_its_dependencies(submitter: Caller, killed: int) -> None:
    first = submit(submitter, guid="first", coscheduled=True)
    second = submit(
        submitter,
        parent=first,
        depends_on=[
            {"job": "first"},
            {"job": killed, "until": "finished"},
            {"job": killed, "until": "started"},
        ],
    )
    job = submitter.get(f"/jobs/{second}").json
    assert job["waits_for"] == [
        {"job": first, "name": "first", "until": "succeeded", "state": "open"},
        {"job": killed, "name": str(killed), "until": "finished", "state": "met"},
        {"job": killed, "name": str(killed), "until": "started", "state": "failed"},
    ]
    assert (job["parent"], job["coscheduled"], job["requeuing"]) == (first, False, False)
    parent = submitter.get(f"/jobs/{first}").json
    assert (parent["children"], parent["coscheduled"]) == (1, True)
    task = submitter.get(f"/jobs/{second}/tasks").json["results"][0]
    explained = submitter.get(f"/tasks/{task['id']}/explain").json
    assert explained["reason"]["code"] == "waiting_for_job"
    assert "until job first has succeeded" in explained["text"]


@pytest.fixture
def held(submitter: Caller, make_cell: Callable[..., Cell]) -> Attempt:
    """An attempt that has ended, its container not confirmed gone; its task waits for that."""
    job_id = submit(submitter, exclusive="strict")
    task = Task.objects.get(job_id=job_id)
    attempt = place(task, make_cell())
    Attempt.objects.filter(pk=attempt.pk).update(
        state=TaskState.WORKER_FAILED, finished_at=clock.now()
    )
    Task.objects.filter(pk=task.pk).update(state=TaskState.PENDING, finished_at=None)
    return attempt


def test_operator_releases_an_unconfirmed_attempt(operator: Caller, held: Attempt) -> None:
    Alert.objects.create(
        kind="exclusive_held",
        subject=f"attempt {held.pk}",
        text="…",
        raised_at=clock.now(),
        last_raised_at=clock.now(),
    )
    waiting = operator.get(f"/tasks/{held.task_id}/explain").json["reason"]
    assert waiting["code"] == "waiting_for_previous_attempt"
    answer = operator.post(f"/attempts/{held.pk}/release", {"reason": "the machine is scrap"})
    assert answer.status == 200
    assert (answer.json["release_kind"], answer.json["state"]) == ("operator", "WORKER_FAILED")
    assert not Task.objects.get(pk=held.task_id).attempt_open
    step = Transition.objects.filter(task_id=held.task_id).latest("id")
    assert (step.reason, step.message, step.actor) == (
        "released_by_operator",
        "the machine is scrap",
        "olga",
    )
    assert Alert.objects.get().cleared_at is not None
    again = operator.post(f"/attempts/{held.pk}/release", {"reason": "twice"})
    assert (again.status, "released already" in again.json["detail"]) == (409, True)


def test_running_attempt_cannot_be_released(
    submitter: Caller, operator: Caller, make_cell: Callable[..., Cell]
) -> None:
    task = Task.objects.get(job_id=submit(submitter))
    attempt = place(task, make_cell())
    answer = operator.post(f"/attempts/{attempt.pk}/release", {"reason": "impatience"})
    assert answer.status == 409
    assert f"is RUNNING: cancel task {task.pk} first" in answer.json["detail"]
    attempt.refresh_from_db()
    assert attempt.released_at is None


def test_release_requires_an_operator_a_reason_and_an_existing_attempt(
    submitter: Caller, operator: Caller, held: Attempt
) -> None:
    path = f"/attempts/{held.pk}/release"
    assert submitter.post(path, {"reason": "mine"}).status == 403
    assert set(operator.post(path).faults) == {"reason"}
    assert set(operator.post(path, {"reason": ""}).faults) == {"reason"}
    assert operator.post(f"/attempts/{uuid4()}/release", {"reason": "x"}).status == 404
    held.refresh_from_db()
    assert held.released_at is None


def test_attempt_of_a_deleted_job_can_be_released(operator: Caller, held: Attempt) -> None:
    cancel(held.job_id)
    assert operator.send("DELETE", f"/jobs/{held.job_id}").status == 204
    assert operator.get(f"/attempts/{held.pk}").status == 404
    answer = operator.post(f"/attempts/{held.pk}/release", {"reason": "gone"})
    assert (answer.status, answer.json["release_kind"]) == (200, ReleaseKind.OPERATOR)
    assert Job.objects.get(pk=held.job_id).settled_at is not None
    assert Cell.objects.get().attempts.filter(released_at=None).count() == 0
