"""Many callbacks: bounds that hold for any number of workers, and a receiver that hangs."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from controlplane import clock
from controlplane.commands.callbacks import ClaimBatch, claim_callbacks
from controlplane.commands.tenancy.accounts import create_user
from controlplane.models import Callback, Delivery
from controlplane.ticks.callback_delivery import CallbackDelivery
from tests.architecture.source import ROOT
from tests.integration.callbacks.conftest import due_now, ended_job, states_of
from tests.integration.callbacks.receiver import Receiver
from tests.integration.loop.conftest import Loop

WORKER = """
import sys
from django.conf import settings
import django
django.setup()
settings.DATABASES["default"]["NAME"] = sys.argv[1]
from controlplane.ticks.callback_delivery import CallbackDelivery
delivery = CallbackDelivery().start()
for _ in sys.stdin:
    delivery.poll()
delivery.stop()
"""


def start_worker() -> "subprocess.Popen[bytes]":
    """Start another process that delivers: it polls whenever a line is written to it."""
    environment = {**os.environ, "CELLRUN_CALLBACK_ALLOWED_NETWORKS": "127.0.0.0/8"}
    environment["DJANGO_SETTINGS_MODULE"] = "controlplane.config.settings"
    name = connection.settings_dict["NAME"]
    command = [sys.executable, "-c", WORKER, name]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE)


def wake(worker: "subprocess.Popen[bytes]") -> None:
    assert worker.stdin is not None
    worker.stdin.write(b"\n")
    worker.stdin.flush()


def test_hanging_receiver_does_not_delay_other_receivers(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    """By what happened, not by the clock: fifty arrive while none of the thousand has ended."""
    hanging = ended_job(loop, receiver.url("hang"), replicas=1_000)
    delivery.poll()
    receiver.wait_for(8)
    with Receiver() as other:
        prompt = ended_job(loop, other.url("200"), replicas=50)
        delivery.poll()
        other.wait_for(50)
        other.wait_until(lambda: states_of(prompt) == ["delivered"] * 50, "all are delivered")
        assert other.most_open <= 8
        assert Counter(states_of(hanging)) == {"claimed": 8, "waiting": 992}
        assert Delivery.objects.filter(callback__job=hanging).count() == 0
        assert (len(receiver.received), receiver.open, receiver.most_open) == (8, 8, 8)


def test_claims_are_bounded_and_shared_between_hosts(
    loop: Loop, receiver: Receiver, allowed: Callable[..., None]
) -> None:
    allowed(callbacks_at_once=12, callbacks_per_host=4)
    with Receiver() as other:
        jobs = [ended_job(loop, at.url("200"), replicas=10) for at in (receiver, other)]
    taken = claim_callbacks(now=clock.now())
    assert Counter(item.job_id for item in taken.items) == {job.pk: 3 for job in jobs}
    assert not claim_callbacks(now=clock.now()).items


def test_lost_delivery_past_give_up_at_is_abandoned(
    loop: Loop, receiver: Receiver, allowed: Callable[..., None]
) -> None:
    job = ended_job(loop, receiver.url("200"))
    assert len(claim_callbacks(now=clock.now()).items) == 1
    Callback.objects.filter(job=job).update(claimed_until=clock.now(), give_up_at=clock.now())
    assert loop.converge()["tries_lost"] == 1
    assert states_of(job) == ["abandoned"]


def test_owner_gets_at_most_half_of_the_claims(
    loop: Loop, receiver: Receiver, allowed: Callable[..., None]
) -> None:
    """One has 200 that are due for longer, to 40 hosts; the other still gets all that it may."""
    allowed(callbacks_at_once=20, callbacks_per_host=8)
    many = ended_job(loop, receiver.url("hang"), replicas=200)
    for number, callback in enumerate(Callback.objects.filter(job=many)):
        Callback.objects.filter(pk=callback.pk).update(host=f"host-{number % 40}:80")
    assert Counter(claimed()) == {many.pk: 10}
    loop.owner, _ = create_user(name="other", password=None, is_operator=False)
    few = ended_job(loop, receiver.url("200"), replicas=30)
    assert Counter(claimed()) == {few.pk: 8}  # as many as one host may have


def test_owners_share_the_limit_of_a_host(
    loop: Loop, receiver: Receiver, allowed: Callable[..., None]
) -> None:
    allowed(callbacks_at_once=100, callbacks_per_host=4)
    first = ended_job(loop, receiver.url("hang"), replicas=20)
    loop.owner, _ = create_user(name="other", password=None, is_operator=False)
    second = ended_job(loop, receiver.url("hang"), replicas=20)
    assert Counter(claimed()) == {first.pk: 2, second.pk: 2}


def claimed() -> list[int]:
    """The jobs of what may be tried now."""
    return [item.job_id for item in claim_callbacks(now=clock.now()).items]


def test_next_claim_resumes_behind_the_hosts_already_seen(
    loop: Loop, receiver: Receiver, allowed: Callable[..., None]
) -> None:
    """Those before it hang, or wait for their next try; it is not among the oldest either."""
    allowed(callbacks_at_once=20, callbacks_per_host=1)
    job = ended_job(loop, receiver.url("200"), replicas=400)
    ids = list(Callback.objects.filter(job=job).order_by("id").values_list("id", flat=True))
    later = clock.now() + timedelta(hours=1)
    Callback.objects.filter(pk__in=ids[:300]).update(host="a:80", due_at=clock.now())
    for number, callback_id in enumerate(ids[300:399]):
        Callback.objects.filter(pk=callback_id).update(host=f"b{number:03}:80", due_at=later)
    Callback.objects.filter(pk=ids[399]).update(host="z:80", due_at=clock.now())
    one = claim_callbacks(now=clock.now())
    two = claim_callbacks(now=clock.now(), left_off=one.left_off)
    assert [item.callback_id for item in (*one.items, *two.items)] == [ids[0], ids[399]]
    assert two.left_off == ""


def test_claims_are_returned_when_the_database_fails(
    loop: Loop, receiver: Receiver, allowed: Callable[..., None]
) -> None:
    job = ended_job(loop, receiver.url("200"), replicas=3)

    def fail(execute: Callable[..., object], sql: str, *rest: object) -> object:
        if "controlplane_taskgroup" in sql:
            raise OperationalError("the database went away")
        return execute(sql, *rest)

    with connection.execute_wrapper(fail), pytest.raises(OperationalError):
        claim_callbacks(now=clock.now())
    assert states_of(job) == ["waiting"] * 3
    assert set(Callback.objects.filter(job=job).values_list("tries")) == {(0,)}
    assert len(claimed()) == 3


def test_claim_with_nothing_due_takes_one_statement(
    loop: Loop, receiver: Receiver, allowed: Callable[..., None]
) -> None:
    job = ended_job(loop, receiver.url("200"), replicas=3)
    Callback.objects.filter(job=job).update(due_at=clock.now() + timedelta(minutes=1))
    now = clock.now()
    with connection.execute_wrapper(count := Statements()):
        assert claim_callbacks(now=now) == ClaimBatch()
    assert len(count.seen) == 1


class Statements:
    """Record the statements that reach the database."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, execute: Callable[..., object], sql: str, *rest: object) -> object:
        self.seen.append(sql)
        return execute(sql, *rest)


def test_two_workers_never_deliver_the_same_callback(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    job = ended_job(loop, receiver.url("200"), replicas=200)
    worker = start_worker()
    try:
        wake(worker)
        delivery.poll()
        receiver.wait_until(lambda: states_of(job) == ["delivered"] * 200, "all are delivered")
    finally:
        worker.communicate(timeout=30)
    tried = Counter(request.headers["webhook-id"] for request in receiver.received)
    assert set(tried.values()) == {1}
    assert receiver.most_open <= 8


def test_callback_claimed_by_a_killed_worker_is_retried(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    job = ended_job(loop, receiver.url("hang"))
    worker = start_worker()
    wake(worker)
    receiver.wait_for(1)
    worker.send_signal(signal.SIGKILL)
    worker.communicate(timeout=30)
    delivery.poll()
    assert states_of(job) == ["claimed"]
    Callback.objects.filter(job=job).update(claimed_until=clock.now())
    assert loop.converge()["tries_lost"] == 1
    callback = Callback.objects.get(job=job)
    # As after any failure: what kills the delivering process must not be tried without end.
    assert callback.due_at > Delivery.objects.get(callback=callback).ended_at
    receiver.answers["hang"] = 200
    due_now(job)
    delivery.poll()
    receiver.wait_until(lambda: states_of(job) == ["delivered"], "it is delivered")
    assert [request.headers["X-Cellrun-Try"] for request in receiver.received] == ["1", "2"]
    errors = list(Delivery.objects.filter(callback__job=job).order_by("id").values_list("error"))
    assert errors == [("the result of the try was never recorded",), ("",)]
