"""Hanging names delay only their owners, and without a lookup no try is counted."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.tenancy.accounts import create_user
from controlplane.models import Callback, Delivery, Job, OneOff
from controlplane.outbox.callbacks.resolver import LookupCaller, Resolver
from controlplane.ticks.callback_delivery import CallbackDelivery
from tests.architecture.source import ROOT
from tests.integration.callbacks.conftest import ended_job
from tests.integration.callbacks.receiver import Receiver
from tests.integration.callbacks.test_one_offs import ended_task
from tests.integration.loop.conftest import Loop

ANY = socket.AF_UNSPEC

HANGING = """
import asyncio, socket, threading
from controlplane.outbox.callbacks.http import CallbackClient
begun = threading.Event()
def hang(*_, **__):
    begun.set()
    threading.Event().wait()
socket.getaddrinfo = hang
async def post():
    async with CallbackClient(allowed=(), seconds=20, at_once=4) as client:
        url = "http://hanging.example/"
        post = asyncio.create_task(client.post(url, owner_id=1, headers={}, body=b""))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        post.cancel()
asyncio.run(post())
print("done")
"""


class NameServers:
    """Those of this machine, but that names with `hangs` in them have no answer until `released`.

    All other names of `example` are this machine's own.
    """

    def __init__(self) -> None:
        self.lookups: list[str] = []
        self.released = threading.Event()
        self._getaddrinfo = socket.getaddrinfo

    def getaddrinfo(self, host: str, *rest: Any, **more: Any) -> list[Any]:
        if not str(host).endswith("example"):
            return self._getaddrinfo(host, *rest, **more)
        self.lookups.append(host)
        if "hangs" in host:
            self.released.wait(20)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answered")
        return self._getaddrinfo("127.0.0.1", *rest, **more)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServers]:
    given = NameServers()
    monkeypatch.setattr(socket, "getaddrinfo", given.getaddrinfo)
    yield given
    given.released.set()


@pytest.fixture
def brief(
    loop: Loop, allowed: Callable[..., None], servers: NameServers
) -> Iterator[CallbackDelivery]:
    """A delivery that gives a try half a second, and an owner one lookup at a time."""
    allowed(callbacks_at_once=8, callback_seconds=0.5)
    running = CallbackDelivery().start()
    yield running
    servers.released.set()
    running.stop()


def test_hanging_names_of_one_owner_do_not_delay_other_owners(
    loop: Loop, receiver: Receiver, brief: CallbackDelivery, servers: NameServers
) -> None:
    for number in range(12):
        ended_job(loop, f"http://hangs-{number}.example/")
    brief.poll()
    receiver.wait_until(lambda: Delivery.objects.count() >= 10, "they were tried")
    loop.owner, _ = create_user(name="other", password=None, is_operator=False)
    ended_task(loop, receiver.url("200", host="good.example"))
    brief.poll()
    receiver.wait_until(lambda: not OneOff.objects.exists(), "the task is delivered and deleted")
    assert len(receiver.received) == 1
    assert servers.lookups == ["hangs-0.example", "good.example"]


def test_delivery_without_a_name_lookup_is_not_counted_as_tried(
    loop: Loop, receiver: Receiver, brief: CallbackDelivery, servers: NameServers
) -> None:
    ended_job(loop, "http://hangs.example/")
    brief.poll()
    receiver.wait_until(lambda: servers.lookups != [], "it is looked up")
    task = ended_task(loop, receiver.url("200", host="good.example"))
    brief.poll()
    receiver.wait_until(lambda: Delivery.objects.filter(callback__task=task).exists(), "a try")
    text = (
        "the name of the receiver was not resolved within 0.5 s: too many lookups are in progress"
    )
    callback = Callback.objects.get(task=task)
    assert (callback.is_tried, callback.last_error) == (False, text)
    Job.objects.filter(pk=task.job_id).update(expires_at=clock.now())
    loop.converge()
    assert OneOff.objects.filter(task=task).exists()
    servers.released.set()
    Callback.objects.filter(task=task).update(due_at=clock.now())
    brief.poll()
    receiver.wait_until(lambda: not OneOff.objects.exists(), "the task is delivered and deleted")
    [request] = receiver.received
    assert request.headers["X-Cellrun-Try"] == "2"


def test_concurrent_lookups_of_one_name_are_merged(servers: NameServers) -> None:
    async def resolve_all() -> list[object]:
        lookups = Resolver(at_once=8, per_owner=1)
        pending = [
            asyncio.create_task(lookups.find(LookupCaller(owner), host, ANY))
            for owner, host in ((1, "hangs.example"), (2, "Hangs.example"), (1, "hangs.example"))
        ]
        await asyncio.sleep(0)
        servers.released.set()
        return await asyncio.gather(*pending, return_exceptions=True)

    assert {type(answer) for answer in asyncio.run(resolve_all())} == {socket.gaierror}
    assert servers.lookups == ["hangs.example"]


def test_queued_lookup_is_started_by_another_owner_with_a_free_slot(servers: NameServers) -> None:
    async def resolve_all() -> tuple[bool, bool]:
        lookups = Resolver(at_once=1, per_owner=1)
        full, late, other = LookupCaller(1), LookupCaller(1), LookupCaller(2)
        hanging = asyncio.create_task(lookups.find(full, "hangs.example", ANY))
        waiting = asyncio.create_task(lookups.find(late, "good.example", ANY))
        await asyncio.sleep(0)
        was = late.is_queued
        # All that may go on do; but one of each owner always may.
        await lookups.find(other, "good.example", ANY)
        await waiting
        hanging.cancel()
        return was, late.is_queued

    assert asyncio.run(resolve_all()) == (True, False)
    assert servers.lookups == ["hangs.example", "good.example"]


def test_cancelled_queued_lookup_is_not_started(servers: NameServers) -> None:
    async def resolve_all() -> None:
        lookups = Resolver(at_once=8, per_owner=1)
        hosts = ("hangs.example", "given-up.example", "good.example")
        hanging, given_up, good = [
            asyncio.create_task(lookups.find(LookupCaller(1), host, ANY)) for host in hosts
        ]
        await asyncio.sleep(0)
        hanging.cancel()  # it goes on, and counts
        given_up.cancel()
        await asyncio.sleep(0)
        assert not good.done()
        servers.released.set()
        await good

    asyncio.run(resolve_all())
    assert servers.lookups == ["hangs.example", "good.example"]


def test_process_exits_despite_a_hanging_name_lookup() -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "controlplane.config.settings"}
    done = subprocess.run(
        [sys.executable, "-c", HANGING],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "done\n"
