"""Artifacts of tasks and jobs, and downloads that continue."""

import asyncio
import uuid
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from django.test import Client

from controlplane import clock
from controlplane.contract.artifacts import path_of
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Cell, Job, Task
from tests.integration.api.conftest import Caller, check_described
from tests.integration.api.test_artifacts import digest, entry, put, report_entries
from tests.integration.api.test_reading import pages, place, submit

WHOLE = bytes(range(256)) * 5


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


def leave(attempt: Attempt, cell: Cell, state: TaskState, **contents: bytes) -> None:
    """The attempt ends in that state with these artifacts; a name's `__` stands for /."""
    named = {name.replace("__", "/"): content for name, content in contents.items()}
    for name, content in named.items():
        assert put(cell, attempt.uid, name, content).status == 200
    report_entries(attempt, *(entry(attempt, name, content) for name, content in named.items()))
    now = clock.now()
    Attempt.objects.filter(pk=attempt.pk).update(state=state, finished_at=now, released_at=now)
    Task.objects.filter(pk=attempt.task_id).update(attempt_open=False, state=TaskState.PENDING)


def submit_groups(caller: Caller, replicas: int) -> int:
    """A job with the groups a and b."""
    groups = [
        {"name": name, "image": "busybox", "command": ["true"], "replicas": replicas}
        for name in "ab"
    ]
    answer = caller.post("/jobs", {"name": "two", "groups": groups})
    assert answer.status == 201
    return int(answer.json["id"])


def names(caller: Caller, path: str) -> list[str]:
    return [item["name"] for item in caller.get(path).json["results"]]


# ----------------------------------------------------------------------------- of a task


def test_artifacts_of_the_last_succeeded_attempt_are_those_of_the_task(
    submitter: Caller, cell: Cell
) -> None:
    submit(submitter)
    task = Task.objects.get()
    path = f"/tasks/{task.pk}/artifacts"
    assert submitter.get(path).json == {"results": [], "next": None}
    assert submitter.get(f"{path}/trace").status == 404
    first = place(task, cell)
    leave(first, cell, TaskState.FAILED, trace=b"failed")
    assert names(submitter, path) == ["trace"]
    assert submitter.get(f"{path}/trace").content == b"failed"
    second = place(task, cell)
    assert names(submitter, path) == [], "the last attempt has none yet"
    leave(second, cell, TaskState.SUCCEEDED, model=b"good", plots__a=b"a")
    third = place(task, cell)
    leave(third, cell, TaskState.WORKER_FAILED, trace=b"late")
    assert names(submitter, path) == ["model", "plots/a"]
    assert submitter.get(f"{path}/model").content == b"good"
    assert submitter.get(f"{path}/trace").status == 404


def test_link_of_an_artifact_returns_its_content(submitter: Caller, cell: Cell) -> None:
    submit(submitter)
    attempt = place(Task.objects.get(), cell)
    name = "a b/50%?.txt"
    put(cell, attempt.uid, name, b"content")
    far = entry(attempt, "far", b"x", uri="s3://bucket/far")
    report_entries(attempt, entry(attempt, name, b"content"), far)
    for path in (f"/tasks/{attempt.task_id}/artifacts", f"/attempts/{attempt.uid}/artifacts"):
        document = submitter.get(path).json
        check_described("Artifacts", document)
        here, there = document["results"]
        assert set(here) == {"name", "size", "sha256", "uri", "link"}
        assert here["uri"] == path_of(str(attempt.uid), name)
        assert submitter.get(here["link"].removeprefix("/api/v1")).content == b"content"
        assert (there["uri"], there["link"]) == ("s3://bucket/far", None)
        refused = submitter.get(f"{path}/far")
        assert (refused.status, refused.json["uri"]) == (409, "s3://bucket/far")


def test_artifacts_of_a_task_require_a_token_and_a_visible_job(
    submitter: Caller, anonymous: Caller, cell: Cell
) -> None:
    submit(submitter)
    attempt = place(Task.objects.get(), cell)
    leave(attempt, cell, TaskState.SUCCEEDED, model=b"good")
    paths = [f"/tasks/{attempt.task_id}/artifacts", f"/jobs/{attempt.job_id}/artifacts"]
    paths.append(f"{paths[0]}/model")
    assert [anonymous.get(path).status for path in paths] == [401] * 3
    assert [submitter.get(path).status for path in paths] == [200] * 3
    Job.objects.update(deleted_at=clock.now())
    assert [submitter.get(path).status for path in paths] == [404] * 3
    assert submitter.get(f"/tasks/{uuid.uuid4()}/artifacts").status == 404
    assert submitter.get(f"{paths[0]}?limit=1").status == 400


# ----------------------------------------------------------------------------- of a job


def test_artifacts_of_a_job_are_listed_by_task_in_pages(submitter: Caller, cell: Cell) -> None:
    job_id = submit_groups(submitter, 3)
    for task in Task.objects.order_by("id"):
        contents = {} if task.index == 1 else {"out": b"%d" % task.index}
        leave(place(task, cell), cell, TaskState.SUCCEEDED, **contents)
    found = pages(submitter, f"/jobs/{job_id}/artifacts?limit=3")
    assert [[(task["group"], task["index"]) for task in page] for page in found] == [
        [("a", 0), ("a", 2), ("b", 0)],
        [("b", 2)],
    ]
    for task in chain.from_iterable(found):
        check_described("TaskArtifacts", task)
        (item,) = task["artifacts"]
        assert submitter.get(item["link"].removeprefix("/api/v1")).content == b"%d" % task["index"]
    (of_group,) = pages(submitter, f"/jobs/{job_id}/artifacts?group=b")
    assert [task["group"] for task in of_group] == ["b", "b"]
    assert submitter.get("/jobs/999/artifacts").status == 404
    assert submitter.get(f"/jobs/{job_id}/artifacts?group=none").json["results"] == []


def test_page_of_artifacts_has_few_tasks_whatever_the_limit(
    submitter: Caller, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.api.work.jobs.MAX_TASKS_WITH_ARTIFACTS", 2)
    job_id = submit(submitter, replicas=3)
    for task in Task.objects.all():
        leave(place(task, cell), cell, TaskState.SUCCEEDED, out=b"x")
    found = pages(submitter, f"/jobs/{job_id}/artifacts?limit=1000")
    assert [len(page) for page in found] == [2, 1]


def test_tasks_of_a_job_are_filtered_by_group_and_index(submitter: Caller) -> None:
    job_id = submit_groups(submitter, 2)

    def found(query: str) -> list[tuple[str, int]]:
        tasks = submitter.get(f"/jobs/{job_id}/tasks?{query}").json["results"]
        return [(task["group"], task["index"]) for task in tasks]

    assert found("index=1") == [("a", 1), ("b", 1)]
    assert found("group=b") == [("b", 0), ("b", 1)]
    assert found("group=b&index=0") == [("b", 0)]
    assert found("group=c") == found("index=7") == []
    assert submitter.get(f"/jobs/{job_id}/tasks?index=-1").status == 400


# ----------------------------------------------------------------------------- parts of a file


@pytest.fixture
def stored(submitter: Caller, cell: Cell) -> str:
    """The path of an artifact with the content WHOLE."""
    submit(submitter)
    attempt = place(Task.objects.get(), cell)
    leave(attempt, cell, TaskState.SUCCEEDED, whole=WHOLE, nothing=b"")
    return f"/tasks/{attempt.task_id}/artifacts/whole"


ETAG = f'"{digest(WHOLE)}"'


@pytest.mark.parametrize(
    ("requested", "first", "last"),
    [
        ("bytes=0-", 0, 1279),
        ("bytes=1000-", 1000, 1279),
        ("bytes=1279-", 1279, 1279),
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=10-99999", 10, 1279),
        ("bytes=-1", 1279, 1279),
        ("bytes=-99999", 0, 1279),
    ],
)
def test_range_returns_the_part(
    submitter: Caller, stored: str, requested: str, first: int, last: int
) -> None:
    answer = submitter.send("GET", stored, Range=requested)
    assert (answer.status, answer.content) == (206, WHOLE[first : last + 1])
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/1280"
    assert answer.headers["Content-Length"] == str(last - first + 1)
    assert answer.headers["ETag"] == ETAG


def test_part_is_streamed_to_asynchronous_servers(submitter: Caller, stored: str) -> None:
    headers = {**submitter.headers, "Range": "bytes=10-1000"}
    answer: Any = Client().get(f"/api/v1{stored}", headers=headers)

    async def read() -> bytes:
        return b"".join([block async for block in answer])

    assert asyncio.run(read()) == WHOLE[10:1001]
    answer.close()


@pytest.mark.parametrize("requested", ["bytes=1280-", "bytes=9999-10000", "bytes=-0"])
def test_range_without_any_byte_of_the_file_is_refused(
    submitter: Caller, stored: str, requested: str
) -> None:
    answer = submitter.send("GET", stored, Range=requested)
    assert (answer.status, answer.json["status"]) == (416, 416)
    assert answer.headers["Content-Range"] == "bytes */1280"


@pytest.mark.parametrize(
    "requested",
    ["", "bytes=-", "bytes=5-3", "bytes=1-2,4-5", "lines=1-2", "bytes=a-b", "bytes=" + "9" * 5000],
)
def test_range_that_is_not_understood_returns_the_whole_file(
    submitter: Caller, stored: str, requested: str
) -> None:
    answer = submitter.send("GET", stored, Range=requested)
    assert (answer.status, answer.content) == (200, WHOLE)
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["Content-Length"] == "1280"


def test_if_range_returns_the_part_only_of_the_same_content(submitter: Caller, stored: str) -> None:
    def content(etag: str) -> tuple[int, bytes]:
        answer = submitter.send("GET", stored, Range="bytes=1000-", If_Range=etag)
        return answer.status, answer.content

    assert content(ETAG) == (206, WHOLE[1000:])
    for other in (f"W/{ETAG}", f'"{digest(b"else")}"', "Wed, 21 Oct 2026 07:28:00 GMT"):
        assert content(other) == (200, WHOLE)


def test_range_of_an_empty_file(submitter: Caller, stored: str) -> None:
    path = stored.replace("whole", "nothing")
    assert submitter.get(path).content == b""
    assert submitter.send("GET", path, Range="bytes=0-").status == 416


@pytest.mark.parametrize("requested", ["", "bytes=3-7"])
def test_artifact_is_served_so_that_a_browser_runs_nothing(
    submitter: Caller, stored: str, requested: str
) -> None:
    headers: Any = submitter.send("GET", stored, Range=requested).headers
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert headers["Content-Disposition"].startswith("attachment;")
