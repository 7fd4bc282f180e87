"""Callbacks over real sockets: a receiver, ended work on PostgreSQL, and the delivery."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from ipaddress import ip_network
from typing import Any

import pytest
from django.db import connection

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.models import Callback, Job
from controlplane.ticks.callback_delivery import CallbackDelivery
from tests.integration.callbacks.receiver import Receiver
from tests.integration.loop.conftest import Loop, loop

__all__ = ["loop"]

WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def allowed(settings: Any) -> Callable[..., None]:
    """Lets callbacks go to this machine, and changes what else is named."""

    def allow(**changes: Any) -> None:
        networks = (ip_network("127.0.0.0/8"),)
        settings.CELLRUN = settings.CELLRUN.model_copy(
            update={"callback_allowed_networks": networks, **changes}
        )

    allow()
    return allow


@pytest.fixture
def delivery(loop: Loop, allowed: Callable[..., None]) -> Iterator[CallbackDelivery]:
    running = CallbackDelivery().start()
    yield running
    running.stop()


def ended_job(loop: Loop, url: str, on: str = "task", **body: Any) -> Job:
    """A job of which all tasks have ended, without having run."""
    job = loop.submit(callback={"url": url, "on": on}, **body)
    end(loop, job)
    return job


def end(loop: Loop, job: Job) -> None:
    """Let a job end without having run."""
    now = clock.now()
    cancel_job(job_id=job.pk, reason="enough", force=False, actor="test", now=now)
    loop.converge()
    job.refresh_from_db()
    assert job.settled_at is not None


def states_of(job: Job) -> list[str]:
    """The states of a job's callbacks, the oldest first."""
    return list(Callback.objects.filter(job=job).order_by("id").values_list("state", flat=True))


def due_now(job: Job) -> None:
    """As if the waits between tries were over."""
    Callback.objects.filter(job=job, state="waiting").update(due_at=clock.now())


def until_it_waits(work: "Future[Any]") -> None:
    """Return when what another does waits for a lock, or is done."""
    give_up = time.monotonic() + 20
    while not work.done() and time.monotonic() < give_up:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction sees no news
            cursor.execute(WAITING)
            if cursor.fetchone()[0]:
                return
        wait([work], timeout=0.02)
