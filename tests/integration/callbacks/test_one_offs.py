"""One-off tasks call back as Diego's do: each try is a claim, and delivery is their end."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_task
from controlplane.commands.jobs.one_offs import claim_task, desire_task, release_claim
from controlplane.commands.retention.deletion import delete_job
from controlplane.domain.errors import Conflict, NotFound
from controlplane.models import AuditLine, Callback, Delivery, Job, OneOff, Task
from controlplane.queries.views.tasks import get_task
from controlplane.spec.one_off import parse_one_off
from controlplane.ticks.callback_delivery import CallbackDelivery
from tests.integration.callbacks.conftest import due_now, states_of, until_it_waits
from tests.integration.callbacks.receiver import Receiver
from tests.integration.loop.conftest import Loop


def ended_task(loop: Loop, url: str, guid: str = "mine") -> Task:
    """A one-off task that was cancelled before it ran."""
    definition: dict[str, Any] = {"image": "x", "command": ["true"], "annotation": "note"}
    definition |= {"resources": {"cpu": 1, "memory": "64Mi"}, "completion_callback_url": url}
    body = {"guid": guid, "domain": "tests", "definition": definition}
    wanted, now = parse_one_off(body), clock.now()
    task_id = desire_task(wanted=wanted, body=body, owner=loop.owner, now=now)
    cancel_task(task_id=task_id, reason="enough", force=False, actor="test", now=clock.now())
    loop.converge()
    return Task.objects.get(pk=task_id)


def test_a_delivered_callback_resolves_and_deletes_the_task(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    task = ended_task(loop, receiver.url("200"))
    job = Job.objects.get(pk=task.job_id)
    delivery.poll()
    receiver.wait_until(lambda: not OneOff.objects.exists(), "the task has gone")
    [request] = receiver.received
    assert request.document == {
        "task_guid": "mine",
        "failed": True,
        "failure_reason": task.failure_reason,
        "result": "",
        "annotation": "note",
        "created_at": round(job.created_at.timestamp() * 1e6) * 1000,
    }
    assert states_of(job) == ["delivered"]
    with pytest.raises(NotFound):
        get_task(task.pk, now=clock.now())
    line = AuditLine.objects.get(action="delete.task")
    assert (line.actor, line.subject) == ("callback", "task mine")
    assert "its callback was delivered" in line.text
    assert ended_task(loop, receiver.url("200")).pk != task.pk


def test_task_is_resolving_during_a_delivery_and_completed_between(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    task = ended_task(loop, receiver.url("hang"))
    callback = Callback.objects.get(task=task)
    delivery.poll()
    receiver.wait_for(1)
    assert OneOff.objects.get(task=task).claimed_by == "callback"
    with pytest.raises(Conflict):
        claim_task(task_id=task.pk, by="ann", now=clock.now())
    receiver.released.set()  # it closes without an answer
    receiver.wait_until(
        lambda: OneOff.objects.get(task=task).claim is None, "the task is COMPLETED again"
    )
    assert Delivery.objects.get(callback=callback).status is None
    receiver.answers["hang"] = 200
    due_now(Job.objects.get(pk=task.job_id))
    delivery.poll()
    receiver.wait_until(lambda: not OneOff.objects.exists(), "the task has gone")


def test_claim_of_another_user_postpones_the_delivery(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    task = ended_task(loop, receiver.url("200"))
    claim = claim_task(task_id=task.pk, by="ann", now=clock.now())
    callback = Callback.objects.get(task=task)

    def is_put_off() -> bool:
        callback.refresh_from_db()
        return callback.last_error == "task mine is RESOLVING already, by ann"

    delivery.poll()
    receiver.wait_until(is_put_off, "it is put off")
    assert (callback.tries, receiver.received) == (0, [])
    assert release_claim(task_id=task.pk, claim=claim, now=clock.now())
    # By itself, a second later.
    receiver.wait_until(lambda: not OneOff.objects.exists(), "the task has gone")
    assert len(receiver.received) == 1


def test_delivery_that_lost_its_claim_does_not_delete_the_task(
    loop: Loop, receiver: Receiver, delivery: CallbackDelivery
) -> None:
    """A client that resolves the task after 30 s of a try has to delete it itself."""
    task = ended_task(loop, receiver.url("late"))
    receiver.answers["late"] = "wait"
    delivery.poll()
    receiver.wait_for(1)
    OneOff.objects.filter(task=task).update(claim=None, claimed_at=None, claimed_by="")
    claim = claim_task(task_id=task.pk, by="ann", now=clock.now())
    receiver.released.set()
    job = Job.objects.get(pk=task.job_id)
    receiver.wait_until(lambda: states_of(job) == ["delivered"], "it is delivered")
    assert OneOff.objects.get(task=task).claim == claim


def test_concurrent_claim_and_deletion_do_not_both_succeed(loop: Loop) -> None:
    """The claim comes when the deletion has found its own, which is about to be over."""
    task = ended_task(loop, "http://example.org/")
    begun = clock.now() - timedelta(seconds=29)
    own = claim_task(task_id=task.pk, by="bob", now=begun)
    with ThreadPoolExecutor(1) as pool:
        claims: list[Future[UUID]] = []

        def claim_first(execute: Callable[..., object], sql: str, *rest: object) -> object:
            if "SET deleted_at" in sql and not claims:
                claims.append(pool.submit(claim, task.pk, begun + timedelta(seconds=31)))
                until_it_waits(claims[0])
            return execute(sql, *rest)

        with connection.execute_wrapper(claim_first):
            at = begun + timedelta(seconds=29)
            delete_job(job_id=task.job_id, claim=own, actor="bob", now=at)
        with pytest.raises(NotFound):
            claims[0].result(timeout=20)


def claim(task_id: int, now: datetime) -> UUID:
    """As another process does."""
    try:
        return claim_task(task_id=task_id, by="ann", now=now)
    finally:
        connection.close()
