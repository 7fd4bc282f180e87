"""Run the guard of Redis in a thread of the inbox, which continues while a batch is applied."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import redis
import structlog
from celery import bootsteps
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from controlplane import clock
from controlplane.commands.cells.floods import alert_dropped, quarantine_closed
from controlplane.inbox.guard import STEP_SECONDS, ClosedLogins, Finding, RedisGuard
from controlplane.outbox.redis_control import RedisControl

log = structlog.get_logger(__name__)


class GuardStep(bootsteps.StartStopStep):
    """Starts and stops the thread with the worker."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)

    def start(self, worker: Any) -> None:
        """Start the thread, if the broker is Redis."""
        if urlsplit(settings.CELERY_BROKER_URL).scheme in {"redis", "rediss"}:
            self._thread.start()

    def stop(self, worker: Any) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        control = RedisControl()
        guard = RedisGuard(
            control,
            manages_users=settings.CELLRUN.redis_users,
            heartbeat_seconds=settings.CELLRUN.heartbeat_seconds,
            lease_seconds=settings.CELLRUN.lease_seconds,
        )
        # In a thread of its own: a database that does not respond must not delay the guard.
        records = ThreadPoolExecutor(max_workers=1)
        is_failing = False
        try:
            while not self._stopped.wait(STEP_SECONDS):
                try:
                    for finding in guard.step(time.monotonic()):
                        records.submit(_record, finding)
                    is_failing = False
                except Exception as error:  # the guard must continue after any error
                    if not is_failing:
                        is_expected = isinstance(error, redis.RedisError)
                        log.warning("guard_failed", error=repr(error), exc_info=not is_expected)
                    is_failing = True
            guard.stop()
        except redis.RedisError as error:
            log.warning("guard_failed", error=str(error))
        finally:
            records.shutdown(wait=False, cancel_futures=True)
            control.close()


def _record(finding: Finding) -> None:
    """Log a finding; quarantine its cell, or raise an alert."""
    now = clock.now()
    try:
        if isinstance(finding, ClosedLogins):
            log.warning("logins_closed", cell=finding.cell, reason=finding.reason)
            quarantine_closed(finding.cell, finding.reason, seconds=finding.seconds, now=now)
        else:
            log.warning("messages_dropped_unread", shard=finding.shard, messages=finding.messages)
            alert_dropped(
                finding.shard,
                messages=finding.messages,
                size_bytes=finding.size_bytes,
                now=now,
            )
    except (DatabaseError, InterfaceError) as error:
        log.warning("finding_not_recorded", error=str(error))
    finally:
        connection.close()
