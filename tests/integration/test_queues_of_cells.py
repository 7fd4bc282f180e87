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
from workers.service import broker as worker_broker
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


@pytest.fixture
def many(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Consume forty queues, whose messages are a burst however slow the machine is."""
    monkeypatch.setattr(worker_broker, "BURST_SECONDS", 60)
    names = [f"test.{uuid.uuid4().hex}" for _ in range(40)]
    for name in names:
        reader.add(name)
    return names


def test_burst_of_one_message_for_each_queue_takes_few_commands(
    client: redis.Redis, reader: Reader, many: list[str]
) -> None:
    push(client, many[:1], 1)
    reader.read(1)
    push(client, many, 1)
    sent: list[int] = []
    channel: Any = reader.consumer.channel
    connection = channel.client.connection
    send = connection.send_packed_command

    def count(command: Any, *args: Any, **options: Any) -> Any:
        sent.append(len(command))
        return send(command, *args, **options)

    connection.send_packed_command = count
    assert sorted(reader.read(40)) == sorted(f"{name} 0" for name in many)
    assert len(sent) < 20
    assert all(client.llen(name) == 0 for name in many)


def test_each_message_of_a_burst_is_read_once_and_in_order(
    client: redis.Redis, reader: Reader, many: list[str]
) -> None:
    for number in range(30):
        for name in many[number:]:
            client.lpush(name, broker.plain_message(name, f"{name} {number}"))
    got = reader.read(sum(40 - number for number in range(30)))
    for place, name in enumerate(many):
        expected = [f"{name} {number}" for number in range(min(place + 1, 30))]
        assert [text for text in got if text.startswith(name)] == expected


def test_message_of_a_burst_may_add_a_queue(
    client: redis.Redis, reader: Reader, many: list[str]
) -> None:
    other = f"test.{uuid.uuid4().hex}"

    def add(_: Any, message: Any) -> None:
        if len(reader.got) == worker_broker.BURST:  # after which the channel looks for more
            reader.add(other)

    push(client, many, 1)
    reader.read(40)
    reader.consumer.callbacks.append(add)
    push(client, [*many, other], 1)
    assert sorted(reader.read(41)) == sorted(f"{name} 0" for name in [*many, other])


def test_unreadable_messages_of_a_burst_are_dropped(
    client: redis.Redis, reader: Reader, many: list[str]
) -> None:
    for name in many[::3]:
        client.lpush(name, b"\xff not a message")
    for name in many[1::3]:
        client.lpush(name, b"x" * (broker.MAX_ENTRY_BYTES + 1))
    push(client, many, 1)
    assert sorted(reader.read(40)) == sorted(f"{name} 0" for name in many)


def test_reading_continues_beside_a_key_that_is_no_list(
    client: redis.Redis, reader: Reader, many: list[str]
) -> None:
    push(client, many[:20], 2)
    client.set(many[30], "no list")
    got: list[str] = []
    errors = 0
    while len(got) < 40 and errors < 100:
        try:
            got += reader.read(1)
        except redis.ResponseError:
            got += reader.got
            errors += 1
            client.delete(many[30])
    assert sorted(got) == sorted(f"{name} {n}" for name in many[:20] for n in range(2))
    push(client, many, 1)
    assert sorted(reader.read(40)) == sorted(f"{name} 0" for name in many)


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
