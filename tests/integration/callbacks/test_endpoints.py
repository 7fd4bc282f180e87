"""The endpoints: refusals at submission, how tries are shown, trying again, the key."""

from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from controlplane import clock
from controlplane.commands.callbacks import claim_callbacks, repeat_callback
from controlplane.commands.retention.deletion import delete_job
from controlplane.domain.callbacks.delivery import callback_key
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Role
from controlplane.models import AuditLine, Callback, Job, TickState
from controlplane.ticks import callbacks as ticks
from controlplane.ticks.callback_delivery import CallbackDelivery
from tests.integration.api.conftest import Caller, make_caller
from tests.integration.callbacks.conftest import due_now, end, ended_job, states_of
from tests.integration.callbacks.receiver import Receiver
from tests.integration.loop.conftest import Loop

JOB = {"name": "job", "image": "x", "command": ["true"]}


@pytest.fixture
def submitter(loop: Loop) -> Caller:
    return make_caller("ann", Role.SUBMITTER)


@pytest.fixture
def operator(loop: Loop) -> Caller:
    return make_caller("olga", Role.OPERATOR)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "a.localhost.",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "10.1.2.3:8080",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:7f00:1::]",
        "[fe80::1]",
        "[fd00::1]",
        "168.63.129.16",
    ],
)
def test_an_address_that_is_not_public_is_refused_at_submission(
    submitter: Caller, host: str
) -> None:
    url = f"http://{host}/done"
    job = submitter.post("/jobs", {**JOB, "callback": {"url": url}})
    assert job.status == 422
    assert "CELLRUN_CALLBACK_ALLOWED_NETWORKS" in job.faults["callback.url"]
    definition = {"image": "x", "command": ["true"], "completion_callback_url": url}
    body = {"guid": "mine", "domain": "tests", "definition": definition}
    task = submitter.post("/tasks", body)
    assert (task.status, list(task.faults)) == (422, ["definition.completion_callback_url"])


def test_names_and_public_addresses_are_accepted(submitter: Caller) -> None:
    for host in ("example.org", "8.8.8.8:8443", "[2606:4700::1]"):
        made = submitter.post("/jobs", {**JOB, "callback": {"url": f"https://{host}/done"}})
        assert made.status == 201, made.json


@pytest.mark.parametrize("sign", [*list('\\"<>^;%{}|`'), "..", "a" * 250, "-."])
def test_invalid_host_is_refused_at_submission(submitter: Caller, sign: str) -> None:
    body = {**JOB, "callback": {"url": f"http://a{sign}b.example/done"}}
    refused = submitter.post("/jobs", body)
    assert (refused.status, list(refused.faults)) == (422, ["callback.url"])


@pytest.mark.parametrize(
    "host", ["[fe.cafe]", "[::1.2.3]", "[1.2.3.4]", "[1::2::3]", "1.1.1.1.1", "256.1.1.1", "08"]
)
def test_malformed_ip_address_is_refused_at_submission(submitter: Caller, host: str) -> None:
    refused = submitter.post("/jobs", {**JOB, "callback": {"url": f"http://{host}:81/done"}})
    assert (refused.status, list(refused.faults)) == (422, ["callback.url"])
    assert "ALLOWED_NETWORKS" not in refused.faults["callback.url"]


def test_invalid_stored_callback_url_does_not_prevent_a_task_end(
    loop: Loop, allowed: Callable[..., None]
) -> None:
    """Not even an address that was let in before there was a bound."""
    job = loop.submit(callback={"url": "http://127.0.0.1:1/", "on": "task"})
    Job.objects.filter(pk=job.pk).update(callback_url="http://" + "a" * 3_000, callback_host="")
    end(loop, job)
    assert (states_of(job), Callback.objects.get(job=job).host) == (["waiting"], "")


def test_spellings_of_one_host_share_its_limit(loop: Loop, allowed: Callable[..., None]) -> None:
    allowed(callbacks_per_host=2)
    for host in ("127.0.0.1:80", "127.1:080", "0x7f.0.0.1", "[::ffff:127.0.0.1]", "2130706433."):
        ended_job(loop, f"http://{host}/")
    assert len(claim_callbacks(now=clock.now()).items) == 2


def test_host_in_an_allowed_network_is_accepted(
    submitter: Caller, allowed: Callable[..., None]
) -> None:
    for status, host in ((201, "127.0.0.1"), (201, "localhost"), (422, "10.0.0.1")):
        body = {**JOB, "callback": {"url": f"http://{host}/done"}}
        assert submitter.post("/jobs", body).status == status


def test_deliveries_are_listed_and_an_operator_repeats_a_callback(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery, submitter: Caller, operator: Caller
) -> None:
    job = ended_job(loop, receiver.url("503"))
    delivery.poll()
    receiver.wait_until(lambda: listed(operator, job.pk)["deliveries"] != [], "a try is kept")
    found = listed(submitter, job.pk)
    assert (found["state"], found["tries"], found["last_error"]) == ("waiting", 1, "status 503")
    assert (found["task"], found["url"]) == (loop.tasks(job)[0].pk, receiver.url("503"))
    [entry] = found["deliveries"]
    assert (entry["number"], entry["status"]) == (1, 503)

    Callback.objects.filter(job=job).update(state="abandoned", ended_at=clock.now())
    receiver.answers["503"] = 200
    path = f"/callbacks/{found['id']}/repeat"
    assert submitter.post(path).status == 403
    repeated = operator.post(path)
    assert (repeated.status, repeated.json["state"]) == (202, "waiting")
    assert "callbacks" in {queue for queue, _ in loop.wire.sent}
    delivery.poll()
    receiver.wait_until(lambda: states_of(job) == ["delivered"], "it is delivered")
    line = AuditLine.objects.get(action="repeat.callback")
    assert (line.actor, line.subject) == ("olga", f"callback {found['id']}")
    assert receiver.url("503") not in line.text
    assert f"to 127.0.0.1:{receiver.server_address[1]}" in line.text


def test_claimed_callback_cannot_be_repeated(
    loop: Loop, allowed: Callable[..., None], operator: Caller
) -> None:
    job = ended_job(loop, "http://127.0.0.1:1/")
    due_now(job)
    [item] = claim_callbacks(now=clock.now()).items
    assert operator.post(f"/callbacks/{item.callback_id}/repeat").status == 409
    assert operator.post(f"/callbacks/{item.callback_id + 1}/repeat").status == 404


def test_repeat_during_a_deletion_leaves_the_callback_abandoned(
    loop: Loop, allowed: Callable[..., None], operator: Caller
) -> None:
    """The deletion commits between the check and the lock, where a check before it is stale."""
    job = ended_job(loop, "http://127.0.0.1:1/secret")
    callback = Callback.objects.get(job=job)
    seen: list[str] = []

    def delete_first(execute: Callable[..., object], sql: str, *rest: object) -> object:
        if "FOR NO KEY UPDATE" in sql and not seen:
            seen.append(sql)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(delete, job.pk).result(timeout=20)
        return execute(sql, *rest)

    with connection.execute_wrapper(delete_first), pytest.raises(NotFound):
        repeat_callback(callback_id=callback.pk, actor="olga", now=clock.now())
    assert "controlplane_job" in seen[0]  # nothing of the callback is locked before
    assert states_of(job) == ["abandoned"]


def delete(job_id: int) -> None:
    """As another process does."""
    try:
        delete_job(job_id=job_id, actor="ann", now=clock.now())
    finally:
        connections.close_all()


def test_callbacks_tick_is_recorded_only_while_claims_succeed(
    loop: Loop, delivery: CallbackDelivery, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    monkeypatch.setattr(ticks.callbacks, "delivery", delivery)
    broken = monkeypatch.context()
    with broken as context:
        context.setattr("controlplane.ticks.callback_store.claim_callbacks", fail)
        ticks.callbacks()
        ticks.callbacks()
        assert not TickState.objects.filter(name="callbacks", finished_at__isnull=False).exists()
    delivery.poll()
    receiver.wait_until(lambda: delivery.claimed_at is not None, "it looked")
    ticks.callbacks()
    assert TickState.objects.get(name="callbacks").finished_at is not None


def test_first_callbacks_tick_of_a_process_is_recorded(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks.callbacks, "delivery", None)
    ticks.callbacks()
    begun = ticks.callbacks.delivery
    assert begun is not None
    try:
        assert TickState.objects.get(name="callbacks").finished_at is not None
    finally:
        begun.stop()


def fail(**_: object) -> None:
    """As if the statement were wrong."""
    raise OperationalError("no such column")


def test_each_user_has_a_separate_callback_key(
    submitter: Caller, operator: Caller, loop: Loop
) -> None:
    keys = [caller.get("/callback-key").json["key"] for caller in (submitter, operator)]
    secret = "only-for-tests-" * 4
    users = (submitter.user, operator.user)
    expected = [b64encode(callback_key(secret, user_id=user.pk)).decode() for user in users]
    assert keys == [f"whsec_{key}" for key in expected]
    assert len(set(keys)) == 2
    assert make_caller("eve").get("/callback-key").status == 403


def listed(caller: Caller, job_id: int) -> dict[str, Any]:
    [found] = caller.get(f"/jobs/{job_id}/callbacks").json["results"]
    return dict(found)
