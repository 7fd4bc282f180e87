"""What is pushed to a real Redis, and how long it lies there."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
import redis
from django.conf import settings

from controlplane.config.celery import app as control_app
from controlplane.contract.wire.queues import INBOX_QUEUES, cell_queue
from controlplane.outbox.transport import QUEUE_TTL_SECONDS, RedisTransport
from workers.service.celery import make_app


@pytest.fixture
def broker() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as connection:
        yield connection


def test_the_queue_of_an_incarnation_expires_an_hour_after_the_last_order(
    broker: redis.Redis,
) -> None:
    """No cell will ever read the queue of a dead incarnation; nothing else deletes it."""
    queue = cell_queue("cell-1", uuid4().hex)
    transport = RedisTransport(settings.CELERY_BROKER_URL)
    transport.push([(queue, "one")])
    assert 0 < broker.ttl(queue) <= QUEUE_TTL_SECONDS == 3600
    broker.expire(queue, 5)
    transport.push([(queue, "two"), (queue, "three")])
    assert broker.ttl(queue) > 5
    assert broker.lrange(queue, 0, -1) == [b"three", b"two", b"one"]
    broker.delete(queue)


def test_inbox_queues_do_not_expire(broker: redis.Redis) -> None:
    queue = INBOX_QUEUES[0]
    RedisTransport(settings.CELERY_BROKER_URL).push([(queue, "one")])
    assert broker.ttl(queue) == -1
    broker.lrem(queue, 1, "one")


def test_no_worker_accepts_remote_control() -> None:
    """It needs no key: any client of Redis could stop cells, or switch placement off."""
    assert control_app.conf.worker_enable_remote_control is False
    try:
        cell_app = make_app(settings.CELERY_BROKER_URL, ["cell.cell-1.one"])
        assert cell_app.conf.worker_enable_remote_control is False
    finally:
        control_app.set_current()


def test_claim_is_won_once_until_it_is_released() -> None:
    """One wake of a tick covers all later ones until the tick begins."""
    transport, name = RedisTransport(settings.CELERY_BROKER_URL), uuid4().hex
    assert [transport.claim(name, 60) for _ in range(3)] == [True, False, False]
    transport.unclaim(name)
    assert transport.claim(name, 60)
    transport.unclaim(name)
