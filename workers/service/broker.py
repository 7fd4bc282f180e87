"""The connection to the broker: back soon after Redis is, closed on a stop, unharmed by any
message.

A list in Redis holds whatever was pushed. In Kombu the error of unpacking one entry ends the
worker; here the entry is dropped and the worker continues. `controlplane.config.broker` has the
same: no module serves both sides except those of the wire.
"""

import threading
from queue import Empty
from typing import Any

import structlog
from celery.app.amqp import AMQP
from celery.worker.state import maybe_shutdown
from kombu.connection import Connection
from kombu.transport import redis as kombu_redis
from redis.exceptions import DataError, RedisError

from controlplane.contract.wire.broker import bound_entry, find_refusal

log = structlog.get_logger(__name__)

RETRY_SECONDS_MAX = 5
"""Kombu would let the pauses between two tries grow to 30 s, the length of a cell's lease."""

SHOWN_CHARS = 200

BROKER_ERRORS = (
    *(Empty, OSError, RedisError),
    *kombu_redis.virtual.Transport.connection_errors,
    *kombu_redis.virtual.Transport.channel_errors,
)
"""Errors of reading a queue that do not concern the message.

All except DataError: Redis' client raises it for arguments that it cannot send, such as a message.
"""


class CellChannel(kombu_redis.Channel):
    """Takes messages from lists; one that cannot be read is logged and dropped.

    Every queue of a cell is consumed with `no_ack`. Celery acknowledges each message all the same,
    which costs a round trip to Redis for a receipt that is not there: a tenth of a fleet's time.
    """

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Nothing to do: the message left the broker when it was taken."""

    def _create_client(self, asynchronous: bool = False) -> Any:
        """A client of Redis that hands on no entry over the size limit."""
        client = super()._create_client(asynchronous)  # type: ignore[no-untyped-call]
        client.set_response_callback("BRPOP", bound_entry)
        return client

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except Exception as error:
            if isinstance(error, BROKER_ERRORS) and not isinstance(error, DataError):
                raise
            text = f"{type(error).__name__}: {error}"[:SHOWN_CHARS]
            log.warning("message_dropped", error=text)
            return True


class CellTransport(kombu_redis.Transport):
    """Redis, read by our channels."""

    Channel = CellChannel

    def _deliver(self, message: Any, queue: Any) -> None:
        """Deliver a message, or drop it by what `find_refusal` finds."""
        refusal = find_refusal(message)
        if refusal is not None:
            log.warning("message_dropped", error=refusal)
            return
        super()._deliver(message, queue)  # type: ignore[no-untyped-call]


class PromptConnection(Connection):
    """A broker connection that comes back soon after the broker has."""

    def get_transport_cls(self) -> Any:
        """Ours, in place of kombu's own for Redis."""
        found = super().get_transport_cls()  # type: ignore[no-untyped-call]
        return CellTransport if found is kombu_redis.Transport else found

    def ensure_connection(
        self, errback: Any = None, max_retries: int | None = None, **options: Any
    ) -> Any:
        """Connect, trying again after 1, 2, … 5, 5, … seconds."""
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": RETRY_SECONDS_MAX}
        return super().ensure_connection(errback, max_retries, **{**pauses, **options})  # type: ignore[no-untyped-call]

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

        return super().ensure(obj, fun, failed, *args, **options)  # type: ignore[no-untyped-call]


class PromptAmqp(AMQP):
    """Celery's way to make connections, with ours in it."""

    Connection = PromptConnection
