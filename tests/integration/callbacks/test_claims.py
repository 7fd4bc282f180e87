"""A callback is one process's at a time: of two that claim at once, and of one that is late."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from django.db import connection

from controlplane import clock
from controlplane.commands.callbacks import (
    ClaimBatch,
    ClaimedCallback,
    DeliveryAttempt,
    claim_callbacks,
    give_back,
    record_try,
)
from controlplane.models import Callback, Delivery
from tests.integration.callbacks.conftest import ended_job, until_it_waits
from tests.integration.loop.conftest import Loop

PAUSE = 4711
# `sum` of a path of its own waits within the statement: after its snapshot, before its first lock.
PAUSED = f"""
CREATE SCHEMA paused;
CREATE FUNCTION paused.wait(state bigint) RETURNS bigint LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock({PAUSE}); RETURN state; END';
CREATE AGGREGATE paused.sum(bigint) (
    sfunc = int8pl, stype = bigint, initcond = '0', finalfunc = paused.wait);
"""


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def paused(loop: Loop) -> Iterator[None]:
    execute(PAUSED)
    yield
    execute("DROP SCHEMA paused CASCADE")


def claim_late() -> ClaimBatch:
    """Claim, and wait in the midst of the statement until the pause is over."""
    try:
        execute("SET search_path = paused, pg_catalog, public")
        return claim_callbacks(now=clock.now())
    finally:
        connection.close()


@pytest.mark.usefixtures("paused")
def test_callback_claimed_since_the_snapshot_is_not_claimed_again(
    loop: Loop, allowed: Callable[..., None]
) -> None:
    allowed(advisory_locks=False)
    job = ended_job(loop, "http://127.0.0.1:9/", replicas=3)
    execute(f"SELECT pg_advisory_lock({PAUSE})")
    try:
        with ThreadPoolExecutor(1) as thread:
            late = thread.submit(claim_late)
            until_it_waits(late)
            assert not late.done()
            assert len(claim_callbacks(now=clock.now()).items) == 3
            execute(f"SELECT pg_advisory_unlock({PAUSE})")
            assert late.result(timeout=20).items == []
    finally:
        execute("SELECT pg_advisory_unlock_all()")
    assert set(Callback.objects.filter(job=job).values_list("state", "tries")) == {("claimed", 1)}


def taken_from(loop: Loop) -> tuple[ClaimedCallback, Callback]:
    """What was claimed, and then by another, since the first was silent for too long."""
    job = ended_job(loop, "http://127.0.0.1:9/")
    [item] = claim_callbacks(now=clock.now()).items
    Callback.objects.filter(job=job).update(claim=uuid4())
    return item, Callback.objects.get(job=job)


def as_now(callback: Callback) -> Callback:
    return Callback.objects.filter(pk=callback.pk, claim=callback.claim, state="claimed").get()


@pytest.mark.parametrize("status", [200, 503])
def test_late_result_does_not_end_the_newer_claim(
    loop: Loop, allowed: Callable[..., None], status: int
) -> None:
    item, others = taken_from(loop)
    now = clock.now()
    record_try(item, DeliveryAttempt(now, now, status, "" if status == 200 else "status 503"))
    assert as_now(others).ended_at is None
    assert Delivery.objects.get(callback=others).status == status


def test_claim_of_another_process_is_not_returned(loop: Loop, allowed: Callable[..., None]) -> None:
    item, others = taken_from(loop)
    give_back(item, now=clock.now())
    assert as_now(others).tries == 1
