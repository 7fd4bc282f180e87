"""The connection to the broker: it reconnects quickly, ends on a stop, and survives any message.

A Redis list may hold arbitrary entries. In Kombu an error while unpacking an entry ends the worker;
here the entry is dropped and the worker continues. `controlplane.config.broker` has the same code,
because the two sides share only the modules of the wire.
"""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty
from time import monotonic
from typing import Any

import orjson
import structlog
from celery.app.amqp import AMQP
from celery.worker.state import maybe_shutdown
from kombu.connection import Connection
from kombu.transport import redis as kombu_redis
from redis.exceptions import DataError, RedisError

from controlplane.contract.wire.broker import bound_entry, find_refusal

log = structlog.get_logger(__name__)

RETRY_SECONDS_MAX = 5
"""Kombu's default of 30 s is the length of a cell's lease."""

SHOWN_CHARS = 200

MAX_PACKED = 256
"""Commands that a channel keeps: those of 256 queues have 4 MB."""

BURST = 8
"""So many messages, each shortly after the last one, make a channel look for more in all queues."""

BURST_SECONDS = 0.005

GONE_SECONDS = 0.01

LEAST_WAITING = 4
CALM = 64
"""Messages without another look, after one that found fewer than LEAST_WAITING."""

BROKER_ERRORS = (
    *(Empty, OSError, RedisError),
    *kombu_redis.virtual.Transport.connection_errors,
    *kombu_redis.virtual.Transport.channel_errors,
)
"""Errors of reading a queue that are not caused by the message.

DataError is an exception to this: the Redis client raises it for arguments that it cannot send.
"""


class CellQos(kombu_redis.QoS):
    """Restores no unacknowledged messages: a cell has none, and may not touch those of others."""

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Do nothing."""


class CellChannel(kombu_redis.Channel):
    """Reads messages from lists; logs and drops unreadable ones.

    Every queue of a cell is consumed with `no_ack`. Celery acknowledges each message nevertheless,
    with a useless round trip to Redis that took a tenth of a fleet's time.

    `receivers`: of the fanout messages published since it was set to 0.
    """

    QoS = CellQos

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._positions: dict[str, int] = {}
        self._reads: dict[tuple[int, float], list[bytes]] = {}
        self._first = 0
        self._lengths = b""
        self._streak = 0
        self._read_at = 0.0
        self.receivers = 0

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Do nothing: the broker has already removed the message."""

    def basic_reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Do nothing, for the same reason; the login of a cell permits no change of other keys."""

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return a Redis client that drops entries over the size limit."""
        client = super()._create_client(asynchronous)  # type: ignore[no-untyped-call]
        client.set_response_callback("BRPOP", self._note_reply)
        client.set_response_callback("PUBLISH", self._note_receivers)
        return client

    def _note_receivers(self, count: int) -> int:
        self.receivers += count
        return count

    def _note_reply(self, reply: Any) -> Any:
        if reply:
            self._first = self._positions.get(reply[0].decode(), 0) + 1
        return bound_entry(reply)

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Wait for a message of any queue, from the one after the queue that was read last.

        A command is packed once: packing the names of 100 queues for each message took a seventh
        of a fleet's time.
        """
        queues = self.active_queues
        if not queues:
            return
        if queues != list(self._positions) or len(self._reads) >= MAX_PACKED:
            self._positions = {queue: position for position, queue in enumerate(queues)}
            self._reads = {}
            self._lengths = b""
        connection = self.client.connection
        first = self._first % len(queues)
        key = first, self.brpop_timeout if timeout is None else timeout
        if key not in self._reads:
            ordered = queues[first:] + queues[:first]
            self._reads[key] = connection.pack_command("BRPOP", *ordered, key[1])
        self._in_poll = connection
        self._brpop_sent_at = monotonic()  # type: ignore[assignment]
        connection.send_packed_command(self._reads[key])

    def _brpop_read(self, **options: Any) -> Any:
        read: Callable[..., object] = super()._brpop_read
        self._read_one(lambda: read(**options))
        if self._is_burst():
            self._read_waiting()
        return True

    def _is_burst(self) -> bool:
        now = monotonic()
        is_quick = now - self._read_at < BURST_SECONDS
        self._streak, self._read_at = self._streak + 1 if is_quick else min(self._streak, 0), now
        return self._streak >= BURST and len(self._positions) > BURST

    def _read_waiting(self) -> None:
        """Read a message of each queue that has one, with two round trips.

        One pass of placement sends an order to each of many cells. With a BRPOP for each, which
        names all queues, reading them took a third of the time of a fleet of 100 cells.
        """
        try:
            waiting = self._list_waiting()
            # The timeout is for a queue that was emptied in between.
            self._send(self._pack("BRPOP", queue, GONE_SECONDS) for queue in waiting)
            for queue in waiting:
                self._read_one(partial(self._read_reply, queue))
        except BaseException:
            # Replies that were not read would be taken for those of other commands.
            self.client.connection.disconnect()
            raise
        self._streak = 0 if len(waiting) >= LEAST_WAITING else -CALM

    def _list_waiting(self) -> list[str]:
        """Return the queues that have a message, without those that the last message added."""
        if not self._lengths:
            self._lengths = b"".join(self._pack("LLEN", queue) for queue in self._positions)
        self._send([self._lengths])
        lengths = [self.client.connection.read_response() for _ in self._positions]
        active = set(self.active_queues)
        found = zip(self._positions, lengths, strict=True)
        return [queue for queue, length in found if length and queue in active]

    def _read_reply(self, queue: str) -> None:
        reply = self.client.parse_response(self.client.connection, "BRPOP")
        if reply:
            self.connection._deliver(orjson.loads(reply[1]), queue)

    def _send(self, commands: Iterable[bytes]) -> None:
        self.client.connection.send_packed_command([b"".join(commands)])

    def _pack(self, *command: Any) -> bytes:
        return b"".join(self.client.connection.pack_command(*command))

    def _read_one(self, read: Callable[[], object]) -> None:
        """Read a message; drop it if it cannot be read."""
        try:
            read()
        except Exception as error:
            if isinstance(error, BROKER_ERRORS) and not isinstance(error, DataError):
                raise
            text = f"{type(error).__name__}: {error}"[:SHOWN_CHARS]
            log.warning("message_dropped", error=text)


class CellTransport(kombu_redis.Transport):
    """Redis transport with CellChannel."""

    Channel = CellChannel

    def _deliver(self, message: Any, queue: Any) -> None:
        """Deliver a message, or log and drop it if `find_refusal` returns a reason."""
        refusal = find_refusal(message)
        if refusal is not None:
            log.warning("message_dropped", error=refusal)
            return
        super()._deliver(message, queue)  # type: ignore[no-untyped-call]


class PromptConnection(Connection):
    """A broker connection that reconnects quickly."""

    def get_transport_cls(self) -> Any:
        """Return CellTransport instead of kombu's transport for Redis."""
        found = super().get_transport_cls()  # type: ignore[no-untyped-call]
        return CellTransport if found is kombu_redis.Transport else found

    def ensure_connection(
        self, errback: Any = None, max_retries: int | None = None, **options: Any
    ) -> Any:
        """Connect, with retries after 1, 2, … 5, 5, … seconds."""
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": RETRY_SECONDS_MAX}
        return super().ensure_connection(errback, max_retries, **{**pauses, **options})  # type: ignore[no-untyped-call]

    def ensure(self, obj: Any, fun: Any, errback: Any = None, *args: Any, **options: Any) -> Any:
        """Retry `fun` while the broker is unavailable, until the process is stopped.

        Celery checks for a stop only in its other loops, so a worker that is stopped during its
        start would retry without end.
        """

        def failed(error: Any, pause: float) -> None:
            if threading.current_thread() is threading.main_thread():
                maybe_shutdown()
            if errback:
                errback(error, pause)

        return super().ensure(obj, fun, failed, *args, **options)  # type: ignore[no-untyped-call]


class PromptAmqp(AMQP):
    """Makes Celery use PromptConnection."""

    Connection = PromptConnection
