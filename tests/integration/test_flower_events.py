"""The events of a cell for Flower are sent while Redis has a subscriber for them."""

import json
import os
import uuid
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.client import Monitor, PubSub

from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState
from workers.cell_attempt import CellAttempt
from workers.service.celery import make_app
from workers.service.flower import FlowerEvents


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as connection:
        yield connection


@pytest.fixture
def prefix() -> str:
    """The prefix of channels that no other test uses."""
    return f"/{uuid.uuid4()}."


@pytest.fixture
def events(prefix: str) -> FlowerEvents:
    app = make_app(os.environ["CELERY_BROKER_URL"], ["unused"])
    app.conf.broker_transport_options["fanout_prefix"] = prefix
    return FlowerEvents(app, "cell@x")


def end_attempts(events: FlowerEvents, *uids: str) -> None:
    for number, uid in enumerate(uids, 1):
        attempt = CellAttempt(
            RunAttempt(uid, number, 1, 0, 1, 0.0), GroupSpec(1, 1, "job", "main", 1)
        )
        attempt.end = AttemptReport(
            uid=uid, seq=1, state=TaskState.SUCCEEDED, started_at=1.0, finished_at=2.5
        )
        events.attempt_ended(attempt)


@contextmanager
def subscribed(client: redis.Redis, prefix: str) -> Iterator[PubSub]:
    """Yield a subscriber as Flower is one."""
    with client.pubsub() as subscriber:
        subscriber.psubscribe(f"{prefix}celeryev/*")
        assert subscriber.get_message(timeout=5) is not None
        yield subscriber


def received(subscriber: PubSub) -> list[dict[str, Any]]:
    messages = iter(lambda: subscriber.get_message(timeout=0.5), None)
    return [event for message in messages for event in events_in(message["data"])]


def published(monitor: Monitor, prefix: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each message to the channels, until a key with their prefix is set."""
    for words in iter(lambda: str(monitor.next_command()["command"]), f"SET {prefix} sent"):
        if words.startswith(f"PUBLISH {prefix}"):
            yield events_in(words.split(" ", 2)[2])


def events_in(message: str | bytes) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(b64decode(json.loads(message)["body"]))
    return events


def test_subscriber_receives_every_event(
    client: redis.Redis, prefix: str, events: FlowerEvents
) -> None:
    with subscribed(client, prefix) as subscriber:
        end_attempts(events, "a", "b", "c", "d")
        events.start()
        events.stop()
        found = received(subscriber)
    assert [event["uuid"] for event in found] == ["a", "b", "c", "d"]
    assert {event["hostname"] for event in found} == {"cell@x"}
    assert {event["type"] for event in found} == {"task-succeeded"}
    assert {event["runtime"] for event in found} == {1.5}


def test_one_event_of_a_group_is_sent_without_a_subscriber(
    client: redis.Redis, prefix: str, events: FlowerEvents
) -> None:
    with client.monitor() as monitor:
        end_attempts(events, "a", "b", "c", "d")
        events.start()
        events.stop()
        client.set(prefix, "sent")
        groups = [[event["uuid"] for event in group] for group in published(monitor, prefix)]
    assert groups == [["a"]]


def test_subscriber_that_arrives_later_receives_every_later_event(
    client: redis.Redis, prefix: str, events: FlowerEvents
) -> None:
    with client.monitor() as monitor:
        end_attempts(events, "a", "b", "c")
        events.start()
        assert next(published(monitor, prefix))
    with subscribed(client, prefix) as subscriber:
        end_attempts(events, "d", "e", "f")
        events.stop()
        found = received(subscriber)
    assert [event["uuid"] for event in found] == ["d", "e", "f"]
