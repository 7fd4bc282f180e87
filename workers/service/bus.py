"""Push a cell's messages to the broker: all of a moment at once, within a second or not at all.

Nothing is retried here: the control plane does not acknowledge what it did not receive, and then
the cell sends it again.
"""

from collections.abc import Sequence
from typing import Protocol

import redis
import structlog

log = structlog.get_logger(__name__)

_TIMEOUT_SECONDS = 1.0


class BrokerClient(Protocol):
    """Takes messages for the broker."""

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send each (queue, message); lost messages are logged, never raised."""


class RedisBrokerClient:
    """Redis lists, as kombu consumes them."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(
            url, socket_connect_timeout=_TIMEOUT_SECONDS, socket_timeout=2 * _TIMEOUT_SECONDS
        )

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        """See Bus."""
        pipeline = self._redis.pipeline(transaction=False)
        for queue, message in messages:
            pipeline.lpush(queue, message)
        try:
            pipeline.execute()
        except redis.RedisError as error:
            log.warning("messages_lost", count=len(messages), error=str(error))
