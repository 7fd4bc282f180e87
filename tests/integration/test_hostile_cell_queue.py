"""The order in which the inbox reads a flood of a cell and a message of another cell."""

from typing import Any

import pytest
import redis
from kombu import Consumer, Queue

from controlplane.config.broker import MORE_MESSAGES, PromptConnection
from controlplane.contract.wire import broker, logins, queues
from tests.integration.test_redis_users import NAME, client_of, url

__all__ = ("url",)

OTHER = "cell-2"
OWN_SHARD, OTHER_SHARD = queues.inbox_queue(NAME), queues.inbox_queue(OTHER)
FLOOD = 2_000
# One reading of a shard: its first message, and the others of the same round trip.
READING = 1 + MORE_MESSAGES


class Reader:
    """Reads all shards as the inbox does, and keeps the queues in the order of the messages."""

    def __init__(self, url: str) -> None:
        self.order: list[str] = []
        self._connection = PromptConnection(url, transport_options={"priority_steps": [0]})

    def read(self, count: int, at: int = -1, do: Any = None) -> None:
        """Read this number of messages; call `do` after message `at`."""

        def take(queue: str) -> Any:
            def add(body: Any, message: Any) -> None:
                self.order.append(queue)
                if len(self.order) == at:
                    do()

            return add

        with self._connection as connection:
            channel = connection.channel()
            consumers = [
                Consumer(
                    channel,
                    queues=[Queue(name, exchange="", routing_key=name, no_declare=True)],
                    no_ack=True,
                    auto_declare=False,
                    accept=["json"],
                    callbacks=[take(name)],
                )
                for name in queues.INBOX_QUEUES
            ]
            for consumer in consumers:
                consumer.consume()
            while len(self.order) < count:
                connection.drain_events(timeout=10)


def push(url: str, cell: str, count: int) -> None:
    """Push messages with the login of the cell itself."""
    shard = queues.inbox_queue(cell)
    with redis.Redis.from_url(url) as operator:
        assert logins.sender(cell) in operator.acl_users()
    with client_of(url, logins.sender(cell)) as client:
        client.lpush(shard, *(broker.plain_message(shard, str(n)) for n in range(count)))


@pytest.mark.parametrize("at", [1, 500, 1_500])
def test_flood_delays_a_message_of_another_cell_by_two_readings_at_most(url: str, at: int) -> None:
    """The message arrives while the inbox reads the flood, which it reads to its end later."""
    assert OWN_SHARD != OTHER_SHARD
    push(url, NAME, FLOOD)
    reader = Reader(url)
    reader.read(FLOOD + 1, at, lambda: push(url, OTHER, 1))
    place = reader.order.index(OTHER_SHARD)
    assert at <= place <= at + 2 * READING
    assert reader.order.count(OWN_SHARD) == FLOOD
