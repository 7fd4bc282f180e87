"""Notifications over real sockets: a web server, a mail server, and the tick on PostgreSQL."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from ipaddress import ip_network
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from controlplane.commands.notifications.delivery import claim_messages, record_try
from controlplane.commands.notifications.windows import collect_events, compose_windows
from controlplane.config.stack.parts.ports import free_port
from controlplane.models import NotificationMessage
from controlplane.outbox.notifications.sending import send
from controlplane.ticks import notifications
from tests.integration.callbacks.receiver import Receiver
from tests.integration.loop.conftest import Loop, loop

__all__ = ["Loop", "loop"]


@pytest.fixture(autouse=True)
def _allowed(settings: Any) -> None:
    """Messages may go to this machine."""
    networks = (ip_network("127.0.0.0/8"),)
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"callback_allowed_networks": networks})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


class Mailbox:
    """A mail server that keeps what it accepts."""

    def __init__(self) -> None:
        self.mails: list[str] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        self.mails.append(envelope.content.decode())
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    kept = Mailbox()
    server = Controller(kept, hostname="127.0.0.1", port=free_port())
    server.start()
    yield kept, server.port
    server.stop()


@pytest.fixture
def tick() -> Iterator[Callable[[], None]]:
    """The tick as Celery runs it, until its tries have ended."""
    threads = ThreadPoolExecutor(4)

    def run() -> None:
        for attempt in notifications.run(threads):
            attempt.result(60)

    yield run
    threads.shutdown()


def pass_at(now: datetime, settings: Any) -> list[str]:
    """Run the steps of the tick at an instant; return the new states of the tried messages."""
    collect_events(now=now)
    compose_windows(now=now)
    allowed = settings.CELLRUN.callback_allowed_networks
    return [
        record_try(item, send(item.url or "", item.message, allowed=allowed), now=now)
        for item in claim_messages(now=now)
    ]


def bodies() -> list[str]:
    """The texts of all messages, the oldest first."""
    return list(NotificationMessage.objects.order_by("id").values_list("body", flat=True))
