"""Everything that is stored can be read: lists in pages, tasks with their reasons."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.contract.states import TaskState
from controlplane.domain.roles import Role
from controlplane.models import Attempt, Cell, Job, Task, TaskGroup
from controlplane.queries.attempts.group_specs import RESULTS_PATH, links_at
from tests.integration.api.conftest import Answer, Caller, check_described, make_caller
from tests.integration.api.links import use_link

JOB = {"name": "hello", "image": "busybox", "command": ["true"]}


def submit(caller: Caller, **fields: Any) -> int:
    answer = caller.post("/jobs", {**JOB, **fields})
    assert answer.status == 201
    return int(answer.json["id"])


def place(task: Task, cell: Cell, **fields: Any) -> Attempt:
    """Give the task an attempt on the cell, as placement would."""
    now = clock.now()
    attempt = Attempt.objects.create(
        uid=uuid.uuid4(),
        task=task,
        group_id=task.group_id,
        job_id=task.job_id,
        cell=cell,
        incarnation="i",
        number=task.attempt_number + 1,
        start_before=now,
        created_at=now,
        state_since=now,
        **{"state": TaskState.RUNNING, **fields},
    )
    task.attempt_uid, task.attempt_number = attempt.uid, attempt.number
    task.attempt_open, task.state = attempt.released_at is None, attempt.state
    task.finished_at = attempt.finished_at
    task.save()
    return attempt


def pages(caller: Caller, path: str) -> list[list[Any]]:
    """All pages of a list."""
    found: list[list[Any]] = []
    following: str | None = path
    while following:
        document = caller.get(following).json
        found.append(document["results"])
        following = document["next"]
        assert len(found) < 100
    return found


def test_jobs_are_listed_newest_first_in_pages(submitter: Caller) -> None:
    ids = [submit(submitter, name=f"job-{n}") for n in range(5)]
    found = pages(submitter, "/jobs?limit=2")
    assert [[job["id"] for job in page] for page in found] == [
        [ids[4], ids[3]],
        [ids[2], ids[1]],
        [ids[0]],
    ]
    assert submitter.get("/jobs?limit=5").json["next"] is None


def test_jobs_are_filtered(submitter: Caller) -> None:
    a = submit(submitter, name="a", labels={"team": "x", "env": "p"})
    b = submit(submitter, name="b", labels={"team": "x"})
    Job.objects.filter(pk=a).update(state=TaskState.RUNNING)

    def ids(query: str) -> list[int]:
        return [job["id"] for job in submitter.get(f"/jobs?{query}").json["results"]]

    assert ids("") == [b, a]
    assert ids("state=running") == [a]
    assert ids("state=RUNNING,pending") == [b, a]
    assert ids("state=FAILED") == []
    assert ids("name=b") == [b]
    assert ids("label=team=x") == [b, a]
    assert ids("label=team=x&label=env=p") == [a]
    assert ids("pool=default") == [b, a]
    assert ids("pool=none") == []
    assert ids("project=default/default") == ids("project=default") == [b, a]
    next_url = submitter.get("/jobs?limit=1&label=team=x").json["next"]
    assert [job["id"] for job in submitter.get(next_url).json["results"]] == [a]


def test_jobs_are_filtered_by_a_readable_project(operator: Caller, submitter: Caller) -> None:
    for name in ("research/vision", "research/speech"):
        operator.put(f"/projects/{name}")
    operator.put("/projects/research/vision/members/users/ann", {"role": "submitter"})
    submit(submitter, name="of-default")
    of_vision = submit(submitter, name="of-vision", domain="research", project="vision")
    found = submitter.get("/jobs?project=research/vision").json["results"]
    assert [job["id"] for job in found] == [of_vision]
    for name in ("research/speech", "research/none", "/default", "default/default/x"):
        refused = submitter.get(f"/jobs?project={name}")
        assert (refused.status, refused.json["detail"]) == (404, f"there is no project {name}")


def test_large_spec_is_omitted_from_lists(submitter: Caller) -> None:
    text = "".join(str(n) for n in range(5_000))
    job_id = submit(submitter, inputs=[{"path": "/in/x", "content": text}])
    assert submitter.get("/jobs").json["results"][0]["spec"] is None
    assert submitter.get(f"/jobs/{job_id}").json["spec"]["inputs"][0]["content"] == text


def test_list_statement_count_does_not_grow_with_rows(submitter: Caller) -> None:
    def count(path: str) -> int:
        with CaptureQueriesContext(connection) as statements:
            assert submitter.get(path).status == 200
        return len(statements)

    one = submit(submitter)
    few = {path: count(path) for path in ("/jobs", f"/jobs/{one}/tasks")}
    many = submit(submitter, replicas=50)
    for _ in range(20):
        submit(submitter)
    assert count("/jobs") == few["/jobs"]
    assert count(f"/jobs/{many}/tasks") == few[f"/jobs/{one}/tasks"]


def test_tasks_are_listed_by_group_and_index(submitter: Caller) -> None:
    groups = [{"name": name, "image": "busybox", "replicas": 2} for name in ("z", "a")]
    job_id = submitter.post("/jobs", {"name": "x", "groups": groups}).json["id"]
    found = [task for page in pages(submitter, f"/jobs/{job_id}/tasks?limit=3") for task in page]
    assert [(task["group"], task["index"]) for task in found] == [
        ("z", 0),
        ("z", 1),
        ("a", 0),
        ("a", 1),
    ]
    Task.objects.filter(pk=found[1]["id"]).update(not_before=clock.now())
    assert len(submitter.get(f"/jobs/{job_id}/tasks?state=pending").json["results"]) == 4
    assert submitter.get(f"/jobs/{job_id}/tasks?state=failed").json["results"] == []


def test_pending_task_has_a_pending_reason(submitter: Caller) -> None:
    job_id = submit(submitter)
    task = Task.objects.get()
    now = clock.now()

    def reason() -> tuple[str, str]:
        found = submitter.get(f"/tasks/{task.pk}").json["pending_reason"]
        explained = submitter.get(f"/tasks/{task.pk}/explain").json
        assert explained["reason"] == found
        assert explained["text"] == found["text"]
        return found["code"], found["text"]

    assert reason()[0] == "queue_position"
    found = {
        "code": "insufficient_resources",
        "text": "no cell has enough free capacity",
        "cell": "c",
    }
    TaskGroup.objects.update(pending_reason=found)
    assert reason() == ("insufficient_resources", "no cell has enough free capacity")
    TaskGroup.objects.update(startable_at=now + timedelta(hours=1))
    assert reason()[0] == "waiting_for_start_time"
    TaskGroup.objects.update(startable_at=None, depends_on=[{"group": "a", "until": "succeeded"}])
    assert reason() == ("waiting_for_dependency", "waits until group a has succeeded")
    Task.objects.update(attempt_open=True)
    assert reason()[0] == "waiting_for_previous_attempt"
    Task.objects.update(not_before=now + timedelta(hours=1))
    assert reason()[0] == "backing_off"
    assert submitter.get(f"/jobs/{job_id}/tasks").json["results"][0]["not_before"] is not None


def test_task_shows_the_outcome_of_its_attempt(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    submit(submitter, annotation="note")
    task, cell = Task.objects.get(), make_cell()
    first = place(task, cell, stop_reason="cancelled")
    shown = submitter.get(f"/tasks/{task.pk}").json
    assert (shown["state"], shown["state_number"], shown["lifecycle"]) == ("RUNNING", 3, "RUNNING")
    assert (shown["cell_id"], shown["stopping"], shown["failed"]) == ("cell-1", True, False)
    assert (shown["attempt_uid"], shown["annotation"]) == (str(first.uid), "note")
    now = clock.now()
    first.state, first.finished_at, first.released_at = TaskState.FAILED, now, now
    first.exit_code, first.failure_kind, first.message = 3, "user", "exit status 3"
    first.release_kind = "confirmed"
    first.save()
    second = place(
        task,
        cell,
        state=TaskState.SUCCEEDED,
        exit_code=0,
        result="42\n",
        finished_at=now,
        released_at=now,
        release_kind="confirmed",
    )
    shown = submitter.get(f"/tasks/{task.pk}").json
    assert (shown["state"], shown["lifecycle"], shown["result"]) == (
        "SUCCEEDED",
        "COMPLETED",
        "42\n",
    )
    assert (shown["exit_code"], shown["failed"], shown["attempt_number"]) == (0, False, 2)
    found = submitter.get(f"/tasks/{task.pk}/attempts").json["results"]
    assert [attempt["number"] for attempt in found] == [2, 1]
    assert (found[1]["failure_reason"], found[1]["failure_kind"]) == ("exit status 3", "user")
    assert submitter.get(f"/attempts/{second.uid}").json == found[0]
    assert [len(page) for page in pages(submitter, f"/tasks/{task.pk}/attempts?limit=1")] == [1, 1]


def test_group_results_bundle_the_succeeded_tasks(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    submit(submitter, replicas=4)
    cell, now = make_cell(), clock.now()
    ended = {"finished_at": now, "released_at": now, "release_kind": "confirmed"}
    for task, state in zip(
        Task.objects.order_by("index")[:3],
        (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SUCCEEDED),
        strict=True,
    ):
        place(task, cell, state=state, result=f"r{task.index}", **ended)
    group = TaskGroup.objects.get()
    place(Task.objects.latest("index"), cell)
    path = f"{RESULTS_PATH}{group.pk}"
    answer = use_link(links_at(now)(group.pk, path), cell)
    assert answer.content == (b'{"name": "0", "content": "r0"}\n{"name": "2", "content": "r2"}\n')
    assert use_link(links_at(now - timedelta(days=2))(group.pk, path), cell).status == 403
    missing = links_at(now)(group.pk, f"{RESULTS_PATH}{group.pk + 1}")
    assert use_link(missing, cell).status == 404


def test_cells_show_free_capacity(submitter: Caller, make_cell: Callable[..., Cell]) -> None:
    submit(submitter, replicas=2, resources={"cpu": 0.5, "memory": "512Mi"})
    cell = make_cell("cell-1")
    make_cell("cell-2")
    for task in Task.objects.all():
        place(task, cell)
    found = submitter.get("/cells").json["results"]
    assert [item["name"] for item in found] == ["cell-1", "cell-2"]
    assert found[0]["capacity"] == {"cpu": 2.0, "memory_mib": 2048, "disk_mib": 0}
    assert found[0]["free"] == {"cpu": 1.0, "memory_mib": 1024, "disk_mib": 0}
    assert found[1]["free"] == found[1]["capacity"]
    assert submitter.get("/cells/cell-1").json == found[0]
    assert [len(page) for page in pages(submitter, "/cells?limit=1")] == [1, 1]


def test_pools_are_shown(submitter: Caller) -> None:
    [pool] = submitter.get("/pools").json["results"]
    assert (pool["name"], pool["pull_timeout_seconds"]) == ("default", 1800)
    assert submitter.get("/pools/default").json == pool


# ---------------------------------------------------------------------------------------- orders


def test_submitter_cancels_their_own_job(submitter: Caller) -> None:
    job_id = submit(submitter, replicas=2)
    answer = submitter.post(f"/jobs/{job_id}/cancel", {"reason": "enough", "force": True})
    assert (answer.status, answer.json["state"]) == (202, "KILLED")
    assert "enough" in answer.json["failure_reason"]
    assert answer.json["task_status_count"] == {"main": {"phase": {"KILLED": 2}}}
    assert submitter.post(f"/jobs/{job_id}/cancel").status == 202


def stopping(caller: Caller, cell: Cell) -> tuple[int, Attempt]:
    """A job that is cancelled, whose one container has its grace."""
    job_id = submit(caller)
    attempt = place(Task.objects.get(job_id=job_id), cell)
    assert caller.post(f"/jobs/{job_id}/cancel").status == 202
    return job_id, attempt


def is_forced(attempt: Attempt) -> bool:
    attempt.refresh_from_db()
    return bool(attempt.stop_forced_at and attempt.released_at is None)


def test_forced_task_cancel_kills_a_stopping_attempt(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    _, attempt = stopping(submitter, make_cell())
    path = f"/tasks/{attempt.task_id}/cancel"
    assert submitter.post(path).status == 409
    assert not is_forced(attempt)
    assert submitter.post(path, {"force": True}).status == 202
    assert is_forced(attempt)
    assert submitter.post(path, {"force": True}).status == 409


def test_operator_force_kills_a_stopping_attempt_of_a_deleted_job(
    submitter: Caller, operator: Caller, make_cell: Callable[..., Cell]
) -> None:
    job_id, attempt = stopping(submitter, make_cell())
    assert submitter.send("DELETE", f"/jobs/{job_id}").status == 204
    path = f"/jobs/{job_id}/cancel"
    assert submitter.post(path).status == 404
    assert make_caller("bob", Role.SUBMITTER).post(path, {"force": True}).status == 403
    assert not is_forced(attempt)
    assert operator.post(path, {"force": True}).status == 202
    assert is_forced(attempt)
    Attempt.objects.update(released_at=clock.now())
    assert operator.post(path, {"force": True}).status == 404


def test_cancelling_a_task_ends_its_job(submitter: Caller) -> None:
    job_id = submit(submitter, replicas=2)
    task = Task.objects.order_by("id")[0]
    answer = submitter.post(f"/tasks/{task.pk}/cancel", {})
    assert (answer.status, answer.json["state"]) == (202, "KILLED")
    assert submitter.get(f"/jobs/{job_id}").json["ending_as"] == "KILLED"
    assert submitter.post(f"/tasks/{task.pk}/cancel", {}).status == 409


def test_job_of_another_user_is_cancelled_by_operators_only(
    submitter: Caller, operator: Caller
) -> None:
    job_id, other = submit(submitter), make_caller("bob", Role.SUBMITTER)
    assert other.get(f"/jobs/{job_id}").status == 200
    answer = other.post(f"/jobs/{job_id}/cancel", {})
    assert (answer.status, answer.faults) == (403, {})
    assert Job.objects.get().ending_as is None
    assert operator.post(f"/jobs/{job_id}/cancel", {}).status == 202


@pytest.mark.parametrize(
    "body", [{"reason": 1}, {"force": "yes"}, {"why": "x"}, {"reason": "x" * 1001}, []]
)
def test_a_malformed_cancellation_changes_nothing(submitter: Caller, body: Any) -> None:
    job_id = submit(submitter)
    answer = submitter.post(f"/jobs/{job_id}/cancel", body)
    assert answer.status == 422
    assert Job.objects.get().ending_as is None


def test_operators_cordon_drain_and_unquarantine_cells(
    operator: Caller, make_cell: Callable[..., Cell]
) -> None:
    Cell.objects.filter(pk=make_cell().pk).update(state="READY")

    def order(name: str) -> Answer:
        return operator.post(f"/cells/cell-1/{name}")

    assert order("cordon").json["state"] == "CORDONED"
    assert order("uncordon").json["state"] == "READY"
    assert order("drain").json["state"] == "DRAINING"
    hour = Cell.objects.get().drain_deadline_at
    assert hour is not None
    assert operator.post("/cells/cell-1/drain", {"deadline_seconds": 60}).status == 200
    assert Cell.objects.get().drain_deadline_at < hour  # type: ignore[operator]
    shown = operator.post("/cells/cell-1/drain", {"deadline_seconds": None}).json
    assert shown["drain_deadline_at"] is None
    Cell.objects.update(state="LOST")
    # A lost cell stays LOST, and is what was ordered when it is back.
    assert (order("uncordon").json["state"], Cell.objects.get().ordered_state) == ("LOST", "READY")
    assert (order("drain").json["state"], Cell.objects.get().ordered_state) == ("LOST", "DRAINING")
    for wrong in ({"now": True}, {"deadline_seconds": -1}, {"deadline_seconds": "soon"}):
        assert operator.post("/cells/cell-1/drain", wrong).status == 422
    Cell.objects.update(state="QUARANTINED")
    assert order("unquarantine").json["state"] == "DRAINING"
    assert order("unquarantine").json["state"] == "DRAINING"


def test_responses_match_the_openapi_schemas(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    job_id, cell = submit(submitter, labels={"a": "b"}, guid="g"), make_cell()
    task = Task.objects.get()
    attempt = place(task, cell, usage={"cpu_seconds": 1.5})
    schema_of = {
        f"/jobs/{job_id}": "Job",
        f"/tasks/{task.pk}": "Task",
        f"/tasks/{task.pk}/explain": "Explanation",
        f"/tasks/{task.pk}/artifacts": "Artifacts",
        f"/attempts/{attempt.uid}": "Attempt",
        "/cells/cell-1": "Cell",
        "/pools/default": "Pool",
    }
    for path, name in schema_of.items():
        check_described(name, submitter.get(path).json)
    for change in submitter.get(f"/jobs/{job_id}/history").json["results"]:
        check_described("Change", change)
    check_described("Batch", submitter.post("/jobs:batch", [JOB]).json)
    check_described("Problem", submitter.post("/jobs", {}).json)


def test_head_and_options_are_answered(submitter: Caller) -> None:
    job_id = submit(submitter)
    for path in ("/jobs", f"/jobs/{job_id}", "/tasks", "/cells", "/pools/default", "/quotas"):
        got = submitter.get(path)
        head = submitter.send("HEAD", path)
        assert (head.status, head.content) == (200, b"")
        assert head.headers["Content-Type"] == got.headers["Content-Type"]
        assert submitter.send("OPTIONS", path).status == 200
    for path in (f"/jobs/{job_id}/cancel", "/cells/cell-1/cordon", "/secrets/a", "/callback-key"):
        answer = submitter.send("OPTIONS", path)
        assert answer.status == 200
        assert "OPTIONS" in answer.headers["Allow"]
    refused = submitter.send("PATCH", "/jobs")
    assert (refused.status, refused.headers["Content-Type"]) == (405, "application/problem+json")
    assert refused.headers["Allow"] == "GET, POST, HEAD, OPTIONS"
