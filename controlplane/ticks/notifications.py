"""The tick of notifications: collect events, compose messages, and send them in threads."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from celery import Task, shared_task
from django.conf import settings
from django.db import connection

from controlplane import clock
from controlplane.commands.notifications.delivery import (
    ClaimedMessage,
    claim_messages,
    record_try,
)
from controlplane.commands.notifications.windows import collect_events, compose_windows
from controlplane.domain.notifications.messages import MAX_ADDRESSES
from controlplane.outbox.notifications.sending import send
from controlplane.queries.notifications import is_any_due

log = structlog.get_logger(__name__)


MAX_PAGES = 10
"""Pages of ended jobs of one run; the next tick continues."""


class NotificationsTask(Task):
    """The Celery task, one instance per process; it owns the threads of the process."""

    def __init__(self) -> None:
        # An address has one try at a time, so no address waits for the thread of another.
        self.threads = ThreadPoolExecutor(MAX_ADDRESSES, thread_name_prefix="notification")


@shared_task(name="controlplane.ticks.notifications", base=NotificationsTask, bind=True)
def notifications(self: NotificationsTask) -> None:
    """Run the tick; beat sends this task."""
    run(self.threads)


def run(threads: ThreadPoolExecutor) -> list["Future[None]"]:
    """Collect and compose what is due, and begin its tries; return them."""
    now = clock.now()
    if not is_any_due(now):
        return []
    for _ in range(MAX_PAGES):
        if not collect_events(now=now):
            break
    compose_windows(now=now)
    return [threads.submit(_on_own_connection, _try_of(item)) for item in claim_messages(now=now)]


def _try_of(item: ClaimedMessage) -> Callable[[], None]:
    def attempt() -> None:
        error = item.fault
        if item.url is not None:
            allowed = settings.CELLRUN.callback_allowed_networks
            error = send(item.url, item.message, allowed=allowed)
        record_try(item, error, now=clock.now())

    return attempt


def _on_own_connection(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # the claim expires, and another try follows
        log.exception("notification_failed")
    finally:
        connection.close()
