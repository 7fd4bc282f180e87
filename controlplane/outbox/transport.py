"""Push messages to the broker: many in one pipeline, within a second or not at all.

Nothing here is retried: the rows are the outbox, and convergence and Sync send everything again.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import redis
import structlog
from django.conf import settings

log = structlog.get_logger(__name__)

# An order that waited so long on a queue is worthless, and so is the queue of a cell that is gone.
QUEUE_TTL_SECONDS = 3_600
_TIMEOUT_SECONDS = 1.0


class Transport(Protocol):
    """Where messages go: Redis, or a simulation's bus."""

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        """Append each (queue, message)."""

    def claim(self, name: str, seconds: float) -> bool:
        """Return whether `name` was not claimed within the last `seconds`."""

    def unclaim(self, name: str) -> None:
        """Forget the claim of `name`."""

    def drop(self, queue: str) -> None:
        """Delete `queue` with all that lies in it."""


class RedisTransport:
    """Redis lists, as kombu consumes them."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(
            url, socket_connect_timeout=_TIMEOUT_SECONDS, socket_timeout=2 * _TIMEOUT_SECONDS
        )

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        """See Transport."""
        pipeline = self._redis.pipeline(transaction=False)
        for queue, message in messages:
            pipeline.lpush(queue, message)
            if queue.startswith("cell."):
                pipeline.expire(queue, QUEUE_TTL_SECONDS)
        pipeline.execute()

    def claim(self, name: str, seconds: float) -> bool:
        """See Transport."""
        return bool(self._redis.set(f"cellrun:{name}", 1, nx=True, px=int(seconds * 1000)))

    def unclaim(self, name: str) -> None:
        """See Transport."""
        self._redis.delete(f"cellrun:{name}")

    def drop(self, queue: str) -> None:
        """See Transport."""
        self._redis.delete(queue)


_replacement: Transport | None = None


def use(transport: Transport | None) -> None:
    """Send through `transport` instead of Redis; None goes back."""
    global _replacement
    _replacement = transport


def push(messages: Sequence[tuple[str, str]]) -> None:
    """Push `messages`. They are lost, with a line in the log, if the broker cannot be reached."""
    if not messages:
        return
    try:
        _transport().push(messages)
    except redis.RedisError as error:
        log.warning("messages_lost", count=len(messages), error=str(error))


def claim(name: str, seconds: float) -> bool:
    """Return whether the caller first claims `name` for `seconds`, or the broker is away."""
    try:
        return _transport().claim(name, seconds)
    except redis.RedisError:
        return True


def unclaim(name: str) -> None:
    """Forget a claim; an unreachable broker forgets it by itself."""
    try:
        _transport().unclaim(name)
    except redis.RedisError as error:
        log.info("unclaim_failed", name=name, error=str(error))


def drop(queue: str) -> None:
    """Delete a queue; one that cannot be deleted now expires by itself."""
    try:
        _transport().drop(queue)
    except redis.RedisError as error:
        log.info("drop_failed", queue=queue, error=str(error))


def _transport() -> Transport:
    return _replacement or _redis_transport(settings.CELERY_BROKER_URL)


@lru_cache(maxsize=2)
def _redis_transport(url: str) -> RedisTransport:
    return RedisTransport(url)
