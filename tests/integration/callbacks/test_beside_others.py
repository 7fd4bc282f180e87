"""Tries beside what others do with the same rows: locks, deletions, claims that are over."""

import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from controlplane import clock
from controlplane.commands.callbacks import (
    ClaimBatch,
    DeliveryAttempt,
    DeliveryResult,
    claim_callbacks,
    record_try,
)
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.retention.purge import purge_deleted
from controlplane.domain.callbacks.delivery import CLAIM_SECONDS, POSTPONED_SECONDS
from controlplane.models import Callback, Delivery, OneOff
from controlplane.ticks import callback_delivery as couriers
from controlplane.ticks.callback_delivery import CallbackDelivery
from tests.integration.callbacks.conftest import ended_job, states_of
from tests.integration.callbacks.receiver import Receiver
from tests.integration.callbacks.test_one_offs import ended_task
from tests.integration.loop.conftest import Loop


def locked(table: str, number: int) -> AbstractContextManager[None]:
    """Lock this row in another session."""
    return holding(f"SELECT 1 FROM {table} WHERE id = %s FOR UPDATE", number)


@contextmanager
def holding(statement: str, number: int) -> Iterator[None]:
    """Hold in another session what `statement` locks."""
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(statement, [number])
                held.set()
                let_go.wait(20)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        holds = pool.submit(hold)
        try:
            assert held.wait(20)
            yield
        finally:
            let_go.set()
            holds.result(timeout=20)


def elsewhere(work: Callable[[], object]) -> None:
    """Do `work` in another connection, to its end."""

    def act() -> None:
        try:
            work()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result(timeout=20)


def test_locked_job_does_not_delay_other_callbacks(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    task = ended_task(loop, receiver.url("200-locked"))
    with locked("controlplane_job", task.job_id):
        delivery.poll()
        receiver.wait_until(
            lambda: Callback.objects.filter(task=task, state="delivered").exists(), "it is noted"
        )
        job = ended_job(loop, receiver.url("200-other"))
        delivery.poll()
        receiver.wait_until(lambda: states_of(job) == ["delivered"], "others are delivered")
        assert OneOff.objects.get(task=task).claimed_by == "callback"
    receiver.wait_until(lambda: not OneOff.objects.exists(), "the task has gone")
    assert len(receiver.received) == 2


def test_locked_callback_does_not_delay_other_callbacks(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    receiver.answers["late"] = "wait"
    job = ended_job(loop, receiver.url("late"))
    delivery.poll()
    receiver.wait_for(1)
    with locked("controlplane_callback", Callback.objects.get(job=job).pk):
        receiver.released.set()
        with Receiver() as prompt:
            other = ended_job(loop, prompt.url("200"))
            delivery.poll()
            prompt.wait_until(lambda: states_of(other) == ["delivered"], "others are delivered")
        assert states_of(job) == ["claimed"]
    receiver.wait_until(lambda: states_of(job) == ["delivered"], "it is noted")


def test_delivery_recorded_during_a_purge_leaves_no_row(
    loop: Loop, allowed: Callable[..., None]
) -> None:
    job = ended_job(loop, "http://127.0.0.1:1/")
    [item] = claim_callbacks(now=clock.now()).items
    delete_job(job_id=job.pk, actor="bob", now=clock.now())
    now, seen = clock.now(), []

    def note() -> None:
        with suppress(OperationalError):  # the recording is tried again
            record_try(item, DeliveryAttempt(now, now, 503, "status 503"))

    def note_after(execute: Callable[..., object], sql: str, *rest: object) -> object:
        done = execute(sql, *rest)
        if "DELETE FROM controlplane_callback" in sql and not seen:
            seen.append(sql)
            elsewhere(note)
        return done

    with connection.execute_wrapper(note_after):
        assert purge_deleted(lambda: False).jobs == 1
    note()
    assert (len(seen), Callback.objects.count(), Delivery.objects.count()) == (1, 0, 0)


def test_interrupted_deliveries_do_not_increase_the_backoff(
    loop: Loop, allowed: Callable[..., None]
) -> None:
    job = ended_job(loop, "http://127.0.0.1:1/")
    for _ in range(5):
        [item] = claim_callbacks(now=clock.now()).items
        now = clock.now()
        stopped = DeliveryAttempt(now, now, None, "stopped", is_cut_short=True)
        assert record_try(item, stopped) == DeliveryResult(0.0)
    [item] = claim_callbacks(now=clock.now()).items
    assert item.number == 1
    noted = record_try(item, DeliveryAttempt(now, now, 503, "status 503"))
    assert noted.again_seconds is not None
    assert noted.again_seconds <= 1.0
    assert (states_of(job), Delivery.objects.count()) == (["waiting"], 6)


def test_callback_that_cannot_finish_within_its_claim_is_returned(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a standstill between the claim and the try: a claim that is as short as a try."""
    taken: list[ClaimBatch] = []

    def claim(**given: Any) -> ClaimBatch:
        taken.append(claim_callbacks(**given))
        seconds = 10.0 if len(taken) == 1 else CLAIM_SECONDS
        monkeypatch.setattr(couriers, "CLAIM_SECONDS", seconds)
        return taken[-1]

    monkeypatch.setattr("controlplane.ticks.callback_store.claim_callbacks", claim)
    ended_task(loop, receiver.url("200"))
    delivery.poll()
    receiver.wait_until(lambda: not OneOff.objects.exists(), "the task has gone")
    assert [len(claims.items) for claims in taken[:2]] == [1, 1]
    [request] = receiver.received
    assert request.headers["X-Cellrun-Try"] == "1"
    assert Delivery.objects.count() == 1


def test_claim_under_contention_resumes_at_the_same_host(
    loop: Loop, allowed: Callable[..., None]
) -> None:
    ended_job(loop, "http://127.0.0.1:1/")
    with holding("SELECT pg_advisory_xact_lock(%s)", zlib.crc32(b"cellrun callbacks")):
        taken = claim_callbacks(now=clock.now(), left_off="a:80")
    assert taken == ClaimBatch((), POSTPONED_SECONDS, "a:80")
    assert len(claim_callbacks(now=clock.now(), left_off="a:80").items) == 1
