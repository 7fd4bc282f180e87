"""What both sides drop of a Redis list before its body is decoded or decompressed."""

import base64
import codecs
import json
import logging
import os
import uuid
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from kombu import Consumer, Queue
from kombu.connection import Connection
from kombu.transport import redis as kombu_redis

from controlplane.config.broker import MORE_MESSAGES, PromptConnection
from controlplane.config.celery import app
from controlplane.contract.wire import broker
from controlplane.contract.wire.queues import INBOX_QUEUES
from workers.service.broker import PromptConnection as CellConnection

SIDES = pytest.mark.parametrize("kind", [PromptConnection, CellConnection], ids=["ours", "cell"])
BOMB_BYTES = 64 << 20


def bomb(queue: str, kind: str) -> str:
    """A message of some kilobytes whose body is 64 MiB once it is decompressed."""
    body = zlib.compress(b'"' + b"a" * BOMB_BYTES + b'"')
    message = json.loads(broker.plain_message(queue, ""))
    message["body"] = base64.b64encode(body).decode()
    message["headers"] = {"compression": kind}
    return json.dumps(message)


def long_message(queue: str) -> str:
    return broker.plain_message(queue, "x" * broker.MAX_BODY_CHARS)


def receive(kind: type[Connection], messages: list[str], queue: str) -> list[Any]:
    """Return what a consumer gets until the message "last"."""
    got: list[Any] = []
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        for text in [*messages, broker.plain_message(queue, "last")]:
            client.lpush(queue, text)
    options = {"priority_steps": [0]}
    with kind(os.environ["CELERY_BROKER_URL"], transport_options=options) as connection:
        consumer = Consumer(
            connection.channel(),
            queues=[Queue(queue, exchange="", routing_key=queue, no_declare=True)],
            no_ack=True,
            auto_declare=False,
            accept=["json"],
            callbacks=[lambda body, _: got.append(body)],
        )
        with consumer:
            while "last" not in got:
                connection.drain_events(timeout=10)
    return got


@SIDES
@pytest.mark.parametrize("name", ["application/x-gzip", "zlib", "gzip", "application/bzip2", "no"])
def test_a_compressed_message_is_dropped_unread(kind: type[Connection], name: str) -> None:
    queue = f"test.{uuid.uuid4().hex}"
    assert receive(kind, [bomb(queue, name)], queue) == ["last"]


@SIDES
@pytest.mark.parametrize("codec", ["zlib_codec", "bz2_codec"])
@pytest.mark.parametrize("content_type", ["application/data", "application/text", None])
def test_message_with_a_compression_encoding_is_dropped_unread(
    kind: type[Connection], codec: str, content_type: str | None
) -> None:
    queue = f"test.{uuid.uuid4().hex}"
    body = codecs.encode(b"a" * BOMB_BYTES, codec)
    message = json.loads(broker.plain_message(queue, ""))
    message["body"] = base64.b64encode(body).decode()
    message |= {"content-type": content_type, "content-encoding": codec}
    assert receive(kind, [json.dumps(message)], queue) == ["last"]


@SIDES
def test_an_entry_over_the_size_limit_is_not_decoded(
    kind: type[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"test.{uuid.uuid4().hex}"
    decoded: list[int] = []
    loads = kombu_redis.loads

    def count(text: str) -> Any:
        decoded.append(len(text))
        return loads(text)

    monkeypatch.setattr(kombu_redis, "loads", count)
    entry = "[" + "[]," * (broker.MAX_ENTRY_BYTES // 3) + "0]"
    assert receive(kind, [entry], queue) == ["last"]
    assert max(decoded) < 10_000


TAGS = [True, 1, 1.5, None, [1], {"a": 1}, ""]


@pytest.mark.parametrize("tag", TAGS)
def test_message_with_a_non_text_delivery_tag_is_refused(tag: Any) -> None:
    message = json.loads(broker.plain_message("q", "text"))
    assert broker.find_refusal(message) is None
    message["properties"]["delivery_tag"] = tag
    assert broker.find_refusal(message) is not None


@pytest.mark.parametrize("info", [None, True, [1], {}, {"exchange": None, "routing_key": []}])
def test_a_message_without_a_route_is_refused(info: Any) -> None:
    message = json.loads(broker.plain_message("q", "text"))
    message["properties"]["delivery_info"] = info
    assert broker.find_refusal(message) is not None


@SIDES
def test_a_message_over_the_size_limit_is_dropped_unread(kind: type[Connection]) -> None:
    queue = f"test.{uuid.uuid4().hex}"
    assert receive(kind, [long_message(queue)], queue) == ["last"]


@SIDES
def test_the_longest_message_that_a_cell_may_send_is_read(kind: type[Connection]) -> None:
    queue = f"test.{uuid.uuid4().hex}"
    longest = '"' * (1 << 20)  # each sign of it is quoted
    assert receive(kind, [broker.plain_message(queue, longest)], queue) == [longest, "last"]


@pytest.mark.parametrize("message", [None, 3, [], "text", {"headers": 7}, {"body": 7}, {}])
def test_invalid_message_is_refused(message: Any) -> None:
    assert broker.find_refusal(message) is not None


def count_reads(*names: str) -> int:
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        stats = client.info("commandstats")
    names = names or ("brpop", "rpop")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names)


def test_inbox_backlog_is_read_in_order_and_in_batches() -> None:
    """With a round trip for each, a flood delays heartbeats for longer than a lease."""
    queue = INBOX_QUEUES[3]
    texts = [str(number) for number in range(400)]
    messages = [broker.plain_message(queue, text) for text in texts]
    messages[50:50] = ["garbage", "null", bomb(queue, "zlib"), "[" * 100_000]
    before = count_reads()
    assert receive(PromptConnection, messages, queue) == [*texts, "last"]
    assert count_reads() - before <= 2 * (len(messages) // MORE_MESSAGES + 2)


def test_an_entry_over_the_size_limit_in_a_backlog_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[int] = []
    loads = kombu_redis.loads
    monkeypatch.setattr(kombu_redis, "loads", lambda text: decoded.append(len(text)) or loads(text))
    queue = INBOX_QUEUES[4]
    long = "[" + "[]," * (broker.MAX_ENTRY_BYTES // 3) + "0]"
    first = broker.plain_message(queue, "first")
    assert receive(PromptConnection, [first, long], queue) == ["first", "last"]
    assert max(decoded) < 10_000


def test_dropped_messages_of_a_batch_are_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise a flood of garbage fills the disk with lines."""
    queue = INBOX_QUEUES[5]
    messages = ["garbage", "null"] * 200
    assert receive(PromptConnection, messages, queue) == ["last"]
    lines = [one.getMessage() for one in caplog.records if "dropped" in one.getMessage()]
    assert 0 < len(lines) <= len(messages) // MORE_MESSAGES + 1
    assert sum(int(line.split()[0]) for line in lines) == len(messages)


def test_queue_of_tasks_is_read_one_message_at_a_time() -> None:
    """A worker takes as many tasks as it has time for; the others wait for another worker."""
    queue = f"test.{uuid.uuid4().hex}"
    before = count_reads()
    texts = [str(number) for number in range(30)]
    messages = [broker.plain_message(queue, text) for text in texts]
    assert receive(PromptConnection, messages, queue) == [*texts, "last"]
    assert count_reads() - before >= 31


@pytest.mark.parametrize("name", ["placement", "convergence", "callbacks", "inbox.control"])
def test_worker_reads_on_after_the_broker_does_not_answer_an_acknowledgement(name: str) -> None:
    got: list[Any] = []
    options = {"priority_steps": [0], "socket_timeout": 0.2}
    with (
        redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client,
        PromptConnection(os.environ["CELERY_BROKER_URL"], transport_options=options) as connection,
    ):
        client.delete(name)

        def take(body: Any, message: Any) -> None:
            got.append(body)
            client.execute_command("CLIENT", "PAUSE", "600", "WRITE")
            message.ack_log_error(logging.getLogger(__name__), connection.connection_errors)

        client.lpush(name, *(broker.plain_message(name, text) for text in ("first", "second")))
        channel = connection.channel()
        channel.basic_qos(0, 1, False)  # as a worker that runs one task at a time
        consumer = app.amqp.TaskConsumer(
            channel, queues=[app.amqp.queues[name]], accept=["json"], callbacks=[take]
        )
        with consumer:
            for _ in range(10):
                try:
                    connection.drain_events(timeout=1)
                except (*connection.connection_errors, TimeoutError):
                    continue
                if len(got) == 2:
                    break
    assert got == ["first", "second"]


def read_all(expected: int, seen: list[tuple[str, Any]]) -> None:
    """Consume all shards into `seen` until it has so many messages, or an error ends the worker."""

    def take(queue: str) -> Any:
        return lambda body, _: seen.append((queue, body))

    options = {"priority_steps": [0]}
    url = os.environ["CELERY_BROKER_URL"]
    with PromptConnection(url, transport_options=options) as connection:
        channel = connection.channel()
        for name in INBOX_QUEUES:
            queue = Queue(name, exchange="", routing_key=name, no_declare=True)
            Consumer(
                channel,
                queues=[queue],
                no_ack=True,
                auto_declare=False,
                accept=["json"],
                callbacks=[take(name)],
            ).consume()
        while len(seen) < expected:
            connection.drain_events(timeout=10)


def push_to_shards(client: redis.Redis, shards: Sequence[str]) -> list[tuple[str, str]]:
    """Push three messages to each shard; return them."""
    pushed = [(queue, f"{number}") for queue in shards for number in range(3)]
    for queue, text in pushed:
        client.lpush(queue, broker.plain_message(queue, text))
    return pushed


def test_messages_in_all_shards_are_read_in_few_round_trips() -> None:
    """Heartbeats of many cells arrive together: a wait for each shard delays the last of them."""
    seen: list[tuple[str, Any]] = []
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        pushed = push_to_shards(client, INBOX_QUEUES)
    before = count_reads("brpop")
    read_all(len(pushed), seen)
    waits = count_reads("brpop") - before
    for queue in INBOX_QUEUES:
        assert [one for one in seen if one[0] == queue] == [
            one for one in pushed if one[0] == queue
        ]
    assert waits <= 3


def test_error_in_one_shard_loses_no_message_of_the_others() -> None:
    seen: list[tuple[str, Any]] = []
    *shards, damaged = INBOX_QUEUES
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        pushed = push_to_shards(client, shards)
        client.set(damaged, "no list")
        try:
            with pytest.raises(redis.ResponseError):
                read_all(len(pushed) + 1, seen)
            left = sum(client.llen(queue) for queue in shards)
        finally:
            client.delete(*INBOX_QUEUES)
    assert seen
    assert len(seen) + left == len(pushed)
