"""Callbacks from a whole stack: signed, also after the process that delivers them was killed."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from standardwebhooks import Webhook

from tests.e2e.stack import RunningStack, open_folder, wait_until
from tests.integration.callbacks.receiver import Received, Receiver

WORK: dict[str, Any] = {
    "task_type": "process",
    "command": ["sh", "-c", "echo done > $CELLRUN_ROOT/out/result"],
}
WORK |= {"result_file": "/out/result", "resources": {"cpu": 0.1, "memory": "64Mi"}}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    allowed = {"CELLRUN_CALLBACK_ALLOWED_NETWORKS": "127.0.0.0/8"}
    with (
        open_folder() as folder,
        RunningStack(folder / "home", cells=1, engine="process", **allowed) as running,
    ):
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


class Api:
    """The API of the stack, for a submitter."""

    def __init__(self, stack: RunningStack) -> None:
        self._url = stack.environment["CELLRUN_URL"] + "/api/v1"
        self._headers = {"Authorization": f"Bearer {stack.environment['CELLRUN_TOKEN']}"}

    def get(self, path: str) -> requests.Response:
        return requests.get(self._url + path, headers=self._headers, timeout=30)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = requests.post(self._url + path, json=body, headers=self._headers, timeout=30)
        assert answer.ok, answer.text
        return dict(answer.json())


@pytest.fixture
def api(stack: RunningStack) -> Api:
    return Api(stack)


def check_signature(api: Api, request: Received) -> None:
    """Verify a request as its receiver does. Raise WebhookVerificationError."""
    key = api.get("/callback-key").json()["key"]
    assert Webhook(key).verify(request.body, request.headers) == request.document


def test_job_and_task_callbacks_are_delivered_and_signed(api: Api, receiver: Receiver) -> None:
    job = {"name": "told", "replicas": 2, **WORK}
    first = api.post("/jobs", {**job, "callback": {"url": receiver.url("200-task"), "on": "task"}})
    second = api.post("/jobs", {**job, "callback": {"url": receiver.url("200-job"), "on": "job"}})
    received = receiver.wait_for(3)
    for request in received:
        check_signature(api, request)
    tasks = [request.document for request in received if request.path == "200-task"]
    assert {(task["job"], task["state"], task["result"]) for task in tasks} == {
        (first["id"], "SUCCEEDED", "done\n")
    }
    assert sorted(task["index"] for task in tasks) == [0, 1]
    [document] = [request.document for request in received if request.path == "200-job"]
    assert (document["job"], document["state"]) == (second["id"], "SUCCEEDED")
    assert document["task_status_count"] == {"main": {"phase": {"SUCCEEDED": 2}}}


def test_one_off_task_is_deleted_after_its_callback(api: Api, receiver: Receiver) -> None:
    definition = {**WORK, "annotation": "mine", "completion_callback_url": receiver.url("200")}
    api.post("/tasks", {"guid": "told-once", "domain": "e2e", "definition": definition})
    [request] = receiver.wait_for(1)
    check_signature(api, request)
    document = request.document
    assert (document["task_guid"], document["failed"], document["annotation"]) == (
        "told-once",
        False,
        "mine",
    )
    assert document["result"] == "done\n"
    wait_until(
        lambda: api.get("/tasks/told-once").status_code == 404, seconds=30, what="it has gone"
    )


def test_killed_callback_process_restarts_and_delivers(
    stack: RunningStack, api: Api, receiver: Receiver
) -> None:
    """What it had claimed waits for the end of the claim; nothing else does."""
    hanging = {"callback": {"url": receiver.url("hang")}}
    api.post("/jobs", {"name": "hangs", "replicas": 10, **WORK, **hanging})
    receiver.wait_for(8)
    stack.kill_and_await("callbacks")
    with Receiver() as other:
        api.post("/jobs", {"name": "next", **WORK, "callback": {"url": other.url("200")}})
        check_signature(api, other.wait_for(1)[0])
    assert len(receiver.received) == 8
