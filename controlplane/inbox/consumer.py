"""The inbox as a step of a Celery worker: messages of 10 ms, up to 500, are one batch.

Messages are not acknowledged to the broker: cells send the reports of a lost batch again, because
they keep each report until the control plane acknowledges it after its commit.
"""

import time
from functools import partial
from typing import Any

import structlog
from celery import bootsteps
from django.db import InterfaceError, OperationalError, close_old_connections, connection
from kombu import Consumer, Queue

from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.inbox.batches import Inbox

log = structlog.get_logger(__name__)

MAX_MESSAGES = 500
LINGER_SECONDS = 0.01
# The least pause before an answer that no message triggers: errors are not repeated at once.
ANSWER_PAUSE_SECONDS = 0.25


class InboxStep(bootsteps.ConsumerStep):
    """Consumes the eight raw queues beside the worker's own."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._inbox = Inbox.with_settings(timer=time.monotonic)
        self._waiting: list[tuple[str, str]] = []  # (queue, text)
        self._hub: Any = None
        self._answer_timer: Any = None
        self._scheduled = False

    def get_consumers(self, channel: Any) -> list[Consumer]:
        """Return one consumer for each shard, which identifies the queue of a message.

        The sender controls `delivery_info`, so it cannot be trusted.
        """
        return [
            Consumer(
                channel,
                queues=[Queue(name, exchange="", routing_key=name, no_declare=True)],
                no_ack=True,
                auto_declare=False,
                accept=["json"],
                callbacks=[partial(self._take, name)],
            )
            for name in INBOX_QUEUES
        ]

    def start(self, consumer: Any) -> None:
        """Start the consumers."""
        super().start(consumer)
        self._hub = consumer.hub
        # After a reconnection the loop may have lost its timers: set them again.
        if self._waiting or self._inbox.seconds_until_answer is not None:
            self._flush_soon()

    def _take(self, queue: str, body: Any, message: Any) -> None:
        if not isinstance(body, str):
            log.warning("message_dropped", error="not a text", message=str(body)[:200])
            return
        self._waiting.append((queue, body))
        if len(self._waiting) >= MAX_MESSAGES or self._hub is None:
            self._flush()
        elif not self._scheduled:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._hub is not None:
            self._scheduled = True
            self._hub.call_later(LINGER_SECONDS, self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        batch, self._waiting = self._waiting, []
        has_used_database = True
        try:
            has_used_database = self._inbox.apply(
                [text for _, text in batch], [queue for queue, _ in batch]
            )
        except (OperationalError, InterfaceError) as error:
            # The database is unavailable: keep nothing, because cells send the messages again.
            log.warning("batch_lost", messages=len(batch), error=str(error))
            self._inbox.note_lost(len(batch), error)
            connection.close()
        except Exception as error:  # the worker must continue after any batch
            log.exception("batch_failed", messages=len(batch))
            self._inbox.note_lost(len(batch), error)
        finally:
            try:
                # Closing costs the next batch a statement: skip it if the database was not used.
                if has_used_database:
                    close_old_connections()
            finally:
                self._schedule_answer()

    def _schedule_answer(self) -> None:
        """Flush when heartbeats that wait must be answered, even if no message arrives."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
        seconds = self._inbox.seconds_until_answer
        if self._hub is not None and seconds is not None:
            self._answer_timer = self._hub.call_later(
                max(seconds, ANSWER_PAUSE_SECONDS), self._flush
            )
