"""The connection to the broker: back soon after Redis is, closed on a stop, unharmed by any
message.

A list in Redis holds whatever was pushed. In Kombu the error of unpacking one entry ends the
worker; here the entry is dropped and the worker continues. `workers.service.broker` is the same for
a cell.
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
"""Kombu would let the pauses between two tries grow to 30 s, the length of a cell's lease."""

SHOWN_CHARS = 200

MORE_MESSAGES = 20
"""Entries of an inbox shard that are read after the first, in one round trip to Redis.

Reading one by one, a busy machine waits for its turn at each, and a flood of bad messages delays
heartbeats for longer than a lease. The largest entries of one trip are 85 MB.
"""

OF_THE_BROKER = (
    *(Empty, OSError, RedisError),
    *kombu_redis.virtual.Transport.connection_errors,
    *kombu_redis.virtual.Transport.channel_errors,
)
"""Errors of reading a queue that do not concern the message.

All except DataError: Redis' client raises it for arguments that it cannot send, such as a message.
"""


class ForgivingChannel(kombu_redis.Channel):
    """Takes messages from lists; one that cannot be read is logged and dropped."""

    _last_queue = ""

    def _create_client(self, asynchronous: bool = False) -> Any:
        """A client of Redis that hands on no entry over the size limit."""
        client = super()._create_client(asynchronous)
        client.set_response_callback("BRPOP", self._note_reply)
        return client

    def _note_reply(self, reply: Any) -> Any:
        self._last_queue = bytes_to_str(reply[0]) if reply else ""
        return bound_entry(reply)

    def _brpop_read(self, **options: Any) -> Any:
        read = super()._brpop_read
        self._read_one(lambda: read(**options))
        # Only the inbox acknowledges nothing: other queues are read no faster than their work.
        if self._last_queue in INBOX_QUEUES:
            queue = self._last_queue
            for entry in self.client.rpop(queue, MORE_MESSAGES) or ():
                self._read_one(partial(self._deliver_entry, queue, entry))
        return True

    def _deliver_entry(self, queue: str, entry: bytes) -> None:
        _, bounded = bound_entry((queue, entry)) or (queue, entry)
        self.connection._deliver(kombu_redis.loads(bytes_to_str(bounded)), queue)

    def _read_one(self, read: Callable[[], object]) -> None:
        known = set(self.qos._delivered)
        try:
            read()
        except Exception as error:
            if isinstance(error, OF_THE_BROKER) and not isinstance(error, DataError):
                raise
            # The entry is off its list already. Its consumer may not have acknowledged it: it would
            # occupy one of the few places of unacknowledged messages permanently.
            for tag in set(self.qos._delivered) - known:
                self.basic_reject(tag, requeue=False)
            text = f"{type(error).__name__}: {error}"[:SHOWN_CHARS]
            log.warning("message dropped, it cannot be read: %s", text)


class ForgivingTransport(kombu_redis.Transport):
    """Redis, read by forgiving channels."""

    Channel = ForgivingChannel

    def _deliver(self, message: Any, queue: Any) -> None:
        """Deliver a message, or drop it by what `find_refusal` finds."""
        refusal = find_refusal(message)
        if refusal is not None:
            log.warning("message dropped unread: %s", refusal)
            return
        super()._deliver(message, queue)


class PromptConnection(Connection):
    """A broker connection that comes back soon after the broker has."""

    def get_transport_cls(self) -> Any:
        """Ours, in place of kombu's own for Redis."""
        found = super().get_transport_cls()
        return ForgivingTransport if found is kombu_redis.Transport else found

    def ensure_connection(
        self, errback: Any = None, max_retries: int | None = None, **options: Any
    ) -> Any:
        """Connect, trying again after 1, 2, … 5, 5, … seconds."""
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": RETRY_SECONDS_MAX}
        return super().ensure_connection(errback, max_retries, **{**pauses, **options})

    def ensure(self, obj: Any, fun: Any, errback: Any = None, *args: Any, **options: Any) -> Any:
        """Retry `fun` while the broker is away, until the process is stopped.

        Otherwise a worker that is stopped while it announces itself, after the broker has gone
        permanently, would retry without end: Celery checks for a stop only in its other loops.
        """

        def failed(error: Any, pause: float) -> None:
            if threading.current_thread() is threading.main_thread():
                maybe_shutdown()
            if errback:
                errback(error, pause)

        return super().ensure(obj, fun, failed, *args, **options)


class PromptAmqp(AMQP):
    """Celery's way to make connections, with ours in it."""

    Connection = PromptConnection
