"""Push messages to the broker, many in one pipeline, with a timeout and without retries.

The rows are the outbox: convergence and Sync send every message again.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import redis
import structlog
from django.conf import settings

log = structlog.get_logger(__name__)

# After this time orders are obsolete. The expiry also removes the queues of cells that are gone.
QUEUE_TTL_SECONDS = 3_600
_TIMEOUT_SECONDS = 1.0


class Transport(Protocol):
    """The broker: Redis, or the bus of a simulation."""

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        """Append each (queue, message)."""

    def claim(self, name: str, seconds: float) -> bool:
        """Claim `name` for `seconds`; return False if it is claimed."""

    def unclaim(self, name: str) -> None:
        """Forget the claim of `name`."""

    def drop(self, queue: str) -> None:
        """Delete `queue` with its messages."""


class RedisTransport:
    """Pushes to Redis lists, as kombu consumes them. See Transport."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(
            url, socket_connect_timeout=_TIMEOUT_SECONDS, socket_timeout=2 * _TIMEOUT_SECONDS
        )

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for queue, message in messages:
            pipeline.lpush(queue, message)
            if queue.startswith("cell."):
                pipeline.expire(queue, QUEUE_TTL_SECONDS)
        pipeline.execute()

    def claim(self, name: str, seconds: float) -> bool:
        return bool(self._redis.set(f"cellrun:{name}", 1, nx=True, px=int(seconds * 1000)))

    def unclaim(self, name: str) -> None:
        self._redis.delete(f"cellrun:{name}")

    def drop(self, queue: str) -> None:
        self._redis.delete(queue)


_replacement: Transport | None = None


def use(transport: Transport | None) -> None:
    """Send through `transport` instead of Redis; None restores Redis."""
    global _replacement
    _replacement = transport


def push(messages: Sequence[tuple[str, str]]) -> None:
    """Push `messages`; if the broker cannot be reached, they are lost and the loss is logged."""
    if not messages:
        return
    try:
        _transport().push(messages)
    except redis.RedisError as error:
        log.warning("messages_lost", count=len(messages), error=str(error))


def claim(name: str, seconds: float) -> bool:
    """Claim `name` for `seconds`; return False if it is claimed, True if the broker is away."""
    try:
        return _transport().claim(name, seconds)
    except redis.RedisError:
        return True


def unclaim(name: str) -> None:
    """Forget a claim; if the broker is unreachable, the claim expires."""
    try:
        _transport().unclaim(name)
    except redis.RedisError as error:
        log.info("unclaim_failed", name=name, error=str(error))


def drop(queue: str) -> None:
    """Delete a queue; if the broker is unreachable, the queue expires."""
    try:
        _transport().drop(queue)
    except redis.RedisError as error:
        log.info("drop_failed", queue=queue, error=str(error))


def _transport() -> Transport:
    return _replacement or _redis_transport(settings.CELERY_BROKER_URL)


@lru_cache(maxsize=2)
def _redis_transport(url: str) -> RedisTransport:
    return RedisTransport(url)
