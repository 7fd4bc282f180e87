"""Kombu's Redis transport for orders, without the broker's memory of what was not acknowledged.

Every queue of a cell is consumed with `no_ack`. Celery acknowledges each message all the same,
which costs a round trip to Redis for a receipt that is not there: a tenth of a fleet's time.
"""

from typing import Any

from kombu.transport import redis


class Channel(redis.Channel):
    """A channel on which nothing waits for an acknowledgement."""

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Nothing to do: the message left the broker when it was taken."""


class Transport(redis.Transport):
    """Redis, with our channel."""

    Channel = Channel
