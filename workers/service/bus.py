"""Push a cell's messages to the broker, in one pipeline with a short timeout.

There are no retries here: the cell repeats messages that the control plane does not acknowledge.
"""

from collections.abc import Sequence
from typing import Protocol

import redis
import structlog

log = structlog.get_logger(__name__)

_TIMEOUT_SECONDS = 1.0


class BrokerClient(Protocol):
    """Sends messages to the broker."""

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        """Send each (queue, message); log lost messages, and never raise."""


class RedisBrokerClient:
    """Pushes to Redis lists, which kombu consumes."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(
            url, socket_connect_timeout=_TIMEOUT_SECONDS, socket_timeout=2 * _TIMEOUT_SECONDS
        )

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        """See BrokerClient."""
        pipeline = self._redis.pipeline(transaction=False)
        for queue, message in messages:
            pipeline.lpush(queue, message)
        try:
            pipeline.execute()
        except redis.RedisError as error:
            log.warning("messages_lost", count=len(messages), error=str(error))
