"""Connect to the broker: reconnect soon, close on a stop, and drop unreadable messages.

A list in Redis may hold any text. An entry that Kombu cannot unpack would end the worker; here the
entry is dropped and the worker continues. `workers.service.broker` does the same for a cell.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any

from celery.app.amqp import AMQP
from celery.worker.state import maybe_shutdown
from kombu.connection import Connection
from kombu.transport import redis as kombu_redis
from kombu.utils.encoding import bytes_to_str
from redis.exceptions import DataError, RedisError

from controlplane.contract.wire.broker import bound_entry, find_refusal
from controlplane.contract.wire.queues import INBOX_QUEUES

log = logging.getLogger(__name__)

RETRY_SECONDS_MAX = 5
"""By default, Kombu lets the pause between two tries grow to 30 s, the length of a lease."""

SHOWN_CHARS = 200

MORE_MESSAGES, MORE_OF_OTHER_SHARDS = 8, 2
"""Entries of an inbox shard, and of each other one, that one round trip reads after the first.

With a round trip for each entry, a flood of bad messages on a busy machine delays heartbeats for
longer than a lease, and heartbeats that arrive together cost a wait for each shard. The largest
entries of one trip are 98 MB.
"""

BROKER_ERRORS = (
    *(Empty, OSError, RedisError),
    *kombu_redis.virtual.Transport.connection_errors,
    *kombu_redis.virtual.Transport.channel_errors,
)
"""Errors of the connection, except DataError, which concerns a message.

The client of Redis raises DataError for arguments that it cannot send.
"""


class ForgivingChannel(kombu_redis.Channel):
    """Reads messages from lists; logs and drops those that cannot be read.

    Every queue is consumed with `no_ack`. Celery acknowledges each message nevertheless.
    """

    _last_queue = ""

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Do nothing: the broker has already removed the message."""

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return a Redis client that replaces entries over the size limit."""
        client = super()._create_client(asynchronous)
        client.set_response_callback("BRPOP", self._note_reply)
        return client

    def _note_reply(self, reply: Any) -> Any:
        self._last_queue = bytes_to_str(reply[0]) if reply else ""
        return bound_entry(reply)

    def _brpop_read(self, **options: Any) -> Any:
        read = super()._brpop_read
        try:
            self._read_one(lambda: read(**options))
            # Only inbox queues: each message of another is a task, which runs while it is read.
            if self._last_queue in INBOX_QUEUES:
                self._read_shards(self._last_queue)
        finally:
            self.connection.log_dropped()
        return True

    def _read_shards(self, first: str) -> None:
        """Read more entries of all shards that this channel consumes, on a second connection.

        Entries beside an error are delivered first: Redis has removed them.
        """
        shards = [queue for queue in INBOX_QUEUES if queue in self.active_queues]
        trip = self.client.pipeline(transaction=False)
        for queue in shards:
            trip.rpop(queue, MORE_MESSAGES if queue == first else MORE_OF_OTHER_SHARDS)
        errors = []
        for queue, reply in zip(shards, trip.execute(raise_on_error=False), strict=True):
            if isinstance(reply, Exception):
                errors.append(reply)
                continue
            for entry in reply or ():
                self._read_one(partial(self._deliver_entry, queue, entry))
        if errors:
            raise errors[0]

    def _deliver_entry(self, queue: str, entry: bytes) -> None:
        _, bounded = bound_entry((queue, entry)) or (queue, entry)
        self.connection._deliver(kombu_redis.loads(bytes_to_str(bounded)), queue)

    def _read_one(self, read: Callable[[], object]) -> None:
        try:
            read()
        except Exception as error:
            if isinstance(error, BROKER_ERRORS) and not isinstance(error, DataError):
                raise
            text = f"{type(error).__name__}: {error}"[:SHOWN_CHARS]
            self.connection.drop(f"it cannot be read: {text}")


class ForgivingTransport(kombu_redis.Transport):
    """The transport for Redis with forgiving channels."""

    Channel = ForgivingChannel

    _dropped = 0
    _first_reason = ""

    def _deliver(self, message: Any, queue: Any) -> None:
        """Deliver a message, or drop it if `find_refusal` refuses it."""
        refusal = find_refusal(message)
        if refusal is not None:
            self.drop(refusal)
            return
        super()._deliver(message, queue)

    def drop(self, reason: str) -> None:
        """Count a dropped message, for the next line of the log."""
        self._first_reason = self._first_reason if self._dropped else reason
        self._dropped += 1

    def log_dropped(self) -> None:
        """Log the messages that were dropped since the last call in one line: a flood has many."""
        if self._dropped:
            log.warning("%d messages dropped unread; first: %s", self._dropped, self._first_reason)
        self._dropped = 0


class PromptConnection(Connection):
    """A broker connection that reconnects soon after the broker is available."""

    def get_transport_cls(self) -> Any:
        """Return ForgivingTransport instead of Kombu's transport for Redis."""
        found = super().get_transport_cls()
        return ForgivingTransport if found is kombu_redis.Transport else found

    def ensure_connection(
        self, errback: Any = None, max_retries: int | None = None, **options: Any
    ) -> Any:
        """Connect; retry after 1, 2, … 5, 5, … seconds."""
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": RETRY_SECONDS_MAX}
        return super().ensure_connection(errback, max_retries, **{**pauses, **options})

    def ensure(self, obj: Any, fun: Any, errback: Any = None, *args: Any, **options: Any) -> Any:
        """Retry `fun` while the broker is unavailable, until the process is stopped.

        Celery checks for a stop only in its other loops: a worker that announces itself while the
        broker is unavailable would retry without end.
        """

        def failed(error: Any, pause: float) -> None:
            if threading.current_thread() is threading.main_thread():
                maybe_shutdown()
            if errback:
                errback(error, pause)

        return super().ensure(obj, fun, failed, *args, **options)


class PromptAmqp(AMQP):
    """Celery's AMQP support with PromptConnection."""

    Connection = PromptConnection
