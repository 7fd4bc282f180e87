"""How the Celery worker of cells reads their queues."""

import os
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.worker import state
from kombu import Consumer, Queue

from controlplane.config.celery import app as ours
from controlplane.contract.wire import broker, envelope, queues
from workers.service.broker import PromptConnection
from workers.service.celery import make_app, register_orders


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as connection:
        yield connection


def push(client: redis.Redis, names: list[str], count: int) -> None:
    for name in names:
        for number in range(count):
            client.lpush(name, broker.plain_message(name, f"{name} {number}"))


class Reader:
    """A consumer of queues that can be added one by one."""

    def __init__(self, connection: PromptConnection) -> None:
        self.got: list[str] = []
        self._connection = connection
        self.consumer = Consumer(
            connection.channel(),
            queues=[],
            no_ack=True,
            auto_declare=False,
            accept=["json"],
            callbacks=[lambda body, _: self.got.append(body)],
        )

    def add(self, name: str) -> None:
        """Consume the queue, too."""
        self.consumer.add_queue(Queue(name, exchange="", routing_key=name, no_declare=True))
        self.consumer.consume(no_ack=True)

    def read(self, count: int) -> list[str]:
        """Return the next messages."""
        self.got.clear()
        while len(self.got) < count:
            self._connection.drain_events(timeout=10)
        return self.got


@pytest.fixture
def reader() -> Iterator[Reader]:
    options = {"priority_steps": [0]}
    url = os.environ["CELERY_BROKER_URL"]
    with PromptConnection(url, transport_options=options) as connection:
        yield Reader(connection)


@pytest.mark.parametrize("full", [(4, 5), (0, 11), (3, 4, 5, 10)])
def test_full_queues_take_turns_among_empty_ones(
    client: redis.Redis, reader: Reader, full: tuple[int, ...]
) -> None:
    names = [f"test.{uuid.uuid4().hex}" for _ in range(12)]
    for name in names:
        reader.add(name)
    chosen = [names[number] for number in full]
    push(client, chosen, 20)
    got = reader.read(20 * len(full))
    for name in chosen:
        # Each queue has its share at any time, and keeps its order.
        assert [text for text in got if text.startswith(name)] == [f"{name} {n}" for n in range(20)]
        share = sum(text.startswith(name) for text in got[: 10 * len(full)])
        assert 9 <= share <= 11


def test_queues_change_while_messages_are_read(client: redis.Redis, reader: Reader) -> None:
    first, second, third = (f"test.{uuid.uuid4().hex}" for _ in range(3))
    reader.add(first)
    reader.add(second)
    for _ in range(3):  # so that the commands of both beginnings are in use
        push(client, [first, second], 2)
        reader.read(4)
    reader.consumer.cancel_by_queue(second)
    reader.add(third)
    push(client, [second], 3)
    push(client, [third, first], 3)
    got = reader.read(6)
    assert sorted({text.split()[0] for text in got}) == sorted([first, third])
    push(client, [first, third], 1)
    reader.read(2)
    assert client.llen(second) >= 2  # one may have been requested before the cancellation
    client.delete(second)


def test_connection_that_was_closed_reads_on(client: redis.Redis, reader: Reader) -> None:
    names = [f"test.{uuid.uuid4().hex}" for _ in range(2)]
    for name in names:
        reader.add(name)
    push(client, names, 1)
    reader.read(2)
    reader.consumer.channel.client.connection.disconnect()
    push(client, names, 1)
    assert sorted(reader.read(2)) == sorted(f"{name} 0" for name in names)


def order(cell: str) -> str:
    return envelope.seal(b"k" * 32, cell=cell, incarnation="i", seq=1, body={"type": "orders"})


def take_orders(payloads: list[Any]) -> list[tuple[str, str]]:
    """Return what is taken of messages with these payloads."""
    taken: list[tuple[str, str]] = []
    app = make_app(os.environ["CELERY_BROKER_URL"], ["cell.x.i"])
    ours.set_current()
    register_orders(app, lambda cell, text: taken.append((cell, text)))
    handler = app.tasks[queues.ORDERS_TASK].start_strategy(app, None)
    for payload in payloads:
        handler(SimpleNamespace(payload=payload), None, None, None, [])
    return taken


def test_order_is_passed_on_with_the_name_of_its_cell() -> None:
    text = order("cell-1")
    before = state.all_total_count[0]
    assert take_orders([[[text], {}, {}], [[text, "more"], {}]]) == [("cell-1", text)] * 2
    assert state.all_total_count[0] == before + 2


@pytest.mark.parametrize(
    "payload", [None, {}, "text", [], [[]], [{}, {}, {}], [[7], {}, {}], [["no envelope"], {}, {}]]
)
def test_malformed_order_is_dropped(payload: Any) -> None:
    text = order("cell-1")
    assert take_orders([payload, [[text], {}, {}]]) == [("cell-1", text)]
