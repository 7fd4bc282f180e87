"""One try each: what a receiver may answer, and what becomes of the callback."""

import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from standardwebhooks import Webhook

from controlplane import clock
from controlplane.commands.retention.deletion import delete_job
from controlplane.domain.callbacks.delivery import callback_key
from controlplane.models import Callback, Delivery
from controlplane.ticks.callback_delivery import STOPPED, CallbackDelivery
from tests.integration.callbacks.conftest import due_now, ended_job, states_of
from tests.integration.callbacks.receiver import Receiver
from tests.integration.loop.conftest import Loop


def tried(receiver: Receiver, callback: Callback, tries: int = 1) -> Delivery:
    """The last of `tries` tries, once it is kept."""

    def is_kept() -> bool:
        return Delivery.objects.filter(callback=callback).count() >= tries

    receiver.wait_until(is_kept, f"{tries} tries kept")
    callback.refresh_from_db()
    return Delivery.objects.filter(callback=callback).latest("id")


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_success_response_delivers_once(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery, status: int
) -> None:
    job = ended_job(loop, receiver.url(str(status)))
    delivery.poll()
    callback = Callback.objects.get(job=job)
    last = tried(receiver, callback)
    assert (last.status, last.error, last.number) == (status, "", 1)
    assert (callback.state, callback.claim, callback.tries) == ("delivered", None, 1)
    assert callback.ended_at == last.ended_at >= last.began_at
    delivery.poll()
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "host", ["127.1", "127.0.0.1.", "0x7f000001", "0177.1.", "2130706433", "[::ffff:7f00:1]"]
)
def test_callback_is_delivered_to_any_spelling_of_an_address(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery, host: str
) -> None:
    job = ended_job(loop, receiver.url("200?a=%zz", host=host))
    delivery.poll()
    callback = Callback.objects.get(job=job)
    assert (tried(receiver, callback).error, callback.state) == ("", "delivered")
    assert [item.path for item in receiver.received] == ["200?a=%zz"]


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("404", 404, "status 404"),
        ("503", 503, "status 503"),
        ("redirect", 301, "status 301: redirects are not followed"),
        ("close", None, "the receiver closed the connection without a response"),
        ("garbage", None, "the response is not HTTP"),
        ("huge", None, "the response is not HTTP"),
        ("hang", None, "no response within 0.5 s"),
        ("slow", None, "no response within 0.5 s"),
        ("hints", None, "the response has more than 256 KiB"),
    ],
)
def test_failed_delivery_is_recorded_and_retried(
    loop: Loop,
    receiver: Receiver,
    allowed: Callable[..., None],
    delivery: CallbackDelivery,
    path: str,
    status: int | None,
    error: str,
) -> None:
    # A slow receiver exceeds the timeout on a busy machine, too; fast ones have time to spare.
    allowed(callback_seconds=0.5 if error.startswith("no response") else 10.0)
    late = CallbackDelivery().start()
    try:
        job = ended_job(loop, receiver.url(path))
        late.poll()
        callback = Callback.objects.get(job=job)
        last = tried(receiver, callback)
        assert (last.status, last.error) == (status, error)
        assert (callback.state, callback.last_error) == ("waiting", error)
        assert callback.due_at > last.ended_at
        assert [request.path for request in receiver.received] == [path]
        receiver.answers[path] = 200
        due_now(job)
        late.poll()
        assert tried(receiver, callback, 2).status == 200
        assert (callback.state, callback.tries) == ("delivered", 2)
    finally:
        late.stop()


def test_endless_response_body_is_not_read_to_the_end(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    job = ended_job(loop, receiver.url("endless"))
    delivery.poll()
    assert tried(receiver, Callback.objects.get(job=job)).status == 200
    receiver.wait_until(lambda: receiver.open == 0, "the connection is closed")


def test_response_headers_in_time_count_without_the_body(
    loop: Loop, receiver: Receiver, allowed: Callable[..., None]
) -> None:
    allowed(callback_seconds=0.9)  # less than a body would be waited for
    brief = CallbackDelivery().start()
    try:
        job = ended_job(loop, receiver.url("headers"))
        brief.poll()
        receiver.wait_until(lambda: states_of(job) == ["delivered"], "it is delivered")
    finally:
        brief.stop()


def test_response_received_before_a_stop_counts_as_delivered(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, read = threading.Event(), aiohttp.StreamReader.read

    async def note(body: aiohttp.StreamReader, most: int = -1) -> bytes:
        reading.set()
        return await read(body, most)

    monkeypatch.setattr(aiohttp.StreamReader, "read", note)
    job = ended_job(loop, receiver.url("headers"))
    delivery.poll()
    receiver.wait_until(reading.is_set, "its body is waited for")
    delivery.stop()
    assert states_of(job) == ["delivered"]


def test_task_callback_has_the_outcome_and_a_signature(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    job = ended_job(loop, receiver.url("200?key=a%2Fb"), annotation="of mine")
    delivery.poll()
    [request] = receiver.wait_for(1)
    callback = Callback.objects.get(job=job)
    [task] = loop.tasks(job)
    assert request.path == "200?key=a%2Fb"
    document = request.document
    created_at = document.pop("created_at")
    assert created_at == round(job.created_at.timestamp() * 1e6) * 1000
    assert document.pop("finished_at").endswith("Z")
    assert document == {
        "event": "task",
        "task_guid": str(task.pk),
        "failed": True,
        "failure_reason": task.failure_reason,
        "result": "",
        "annotation": "of mine",
        "task": task.pk,
        "job": job.pk,
        "group": "main",
        "index": 0,
        "state": "KILLED",
        "exit_code": None,
        "cell_id": None,
        "result_truncated": False,
        "started_at": None,
    }
    assert request.headers["User-Agent"] == "cellrun"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["webhook-id"] == f"callback_{callback.pk}"
    assert request.headers["X-Cellrun-Try"] == "1"
    key = callback_key("only-for-tests-" * 4, user_id=loop.owner.pk)
    assert Webhook(key).verify(request.body, request.headers) == request.document


def test_job_callback_is_sent_after_the_job_has_settled(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    job = ended_job(loop, receiver.url("200"), on="job", replicas=3, labels={"team": "x"})
    delivery.poll()
    [request] = receiver.wait_for(1)
    document = request.document
    assert document["event"] == "job"
    assert (document["job"], document["guid"], document["name"]) == (job.pk, None, "job")
    assert (document["state"], document["labels"]) == ("KILLED", {"team": "x"})
    assert document["task_status_count"] == {"main": {"phase": {"KILLED": 3}}}
    assert document["settled_at"] >= document["finished_at"] >= document["created_at"]


def test_callback_of_a_job_deleted_during_a_delivery_stays_abandoned(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    job = ended_job(loop, receiver.url("hang"))
    delivery.poll()
    receiver.wait_for(1)
    delete_job(job_id=job.pk, actor="test", now=clock.now())
    assert states_of(job) == ["abandoned"]
    delivery.stop()
    [callback] = Callback.objects.filter(job=job)
    assert Delivery.objects.get(callback=callback).error == STOPPED
    assert (callback.state, callback.last_error) == ("abandoned", "what it tells of was deleted")


def test_stop_returns_the_claimed_callbacks(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    job = ended_job(loop, receiver.url("hang"), replicas=20)
    delivery.poll()
    receiver.wait_for(8)
    delivery.stop()
    assert states_of(job) == ["waiting"] * 20
    # At once: another process continues with them. Nor does one that was cut short count as tried.
    assert not Callback.objects.filter(job=job, due_at__gt=clock.now()).exists()
    assert not Callback.objects.filter(job=job, is_tried=True).exists()
    assert Delivery.objects.filter(callback__job=job, error=STOPPED).count() == 8


def test_untrusted_certificate_is_refused(
    loop: Loop, delivery: CallbackDelivery, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Receiver(context) as receiver:
        job = ended_job(loop, receiver.url("200").replace("http:", "https:"))
        delivery.poll()
        last = tried(receiver, Callback.objects.get(job=job))
        assert last.status is None
        assert last.error.startswith("TLS: ")
        assert "CERTIFICATE_VERIFY_FAILED" in last.error
        assert receiver.received == []


def test_callback_past_give_up_at_is_abandoned(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    job = ended_job(loop, receiver.url("503"))
    Callback.objects.filter(job=job).update(give_up_at=clock.now())
    delivery.poll()
    callback = Callback.objects.get(job=job)
    assert tried(receiver, callback).status == 503
    assert (callback.state, callback.last_error) == ("abandoned", "status 503")
    assert callback.ended_at is not None


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"]
)
def test_callback_to_a_disallowed_address_is_not_sent(
    loop: Loop,
    receiver: Receiver,
    allowed: Callable[..., None],
    delivery: CallbackDelivery,
    host: str,
) -> None:
    """Not even if the address was allowed when the job was submitted."""
    job = ended_job(loop, receiver.url("200"))
    Callback.objects.filter(job=job).update(url=receiver.url("200", host=host))
    allowed(callback_allowed_networks=())
    strict = CallbackDelivery().start()
    try:
        strict.poll()
        callback = Callback.objects.get(job=job)
        last = tried(receiver, callback)
    finally:
        strict.stop()
    assert last.status is None
    assert last.error == "refused: its address is not public but loopback"
    assert receiver.received == []
