"""The guard of Redis against memory of connections without a login, and when no memory is left."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from controlplane.contract.wire import logins
from controlplane.inbox.guard import RedisGuard
from controlplane.outbox.redis_control import RedisControl
from tests.harness.cell_logins import redis_with_cells
from tests.integration.test_guard_of_redis import (
    CELLS,
    KEY,
    MIB,
    closed,
    guard_of,
    other_bytes,
    push,
    wait_for_memory,
)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with redis_with_cells(tmp_path, CELLS[:2], KEY) as address:
        yield address


@pytest.fixture
def operator(url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def guard(url: str) -> Iterator[RedisGuard]:
    control = RedisControl(url)
    yield guard_of(control)
    control.close()


def test_unread_responses_to_connections_without_a_login_are_limited(
    url: str, operator: "redis.Redis[bytes]", guard: RedisGuard
) -> None:
    """A refusal is eleven times as long as its command; a task that reaches Redis can do this."""
    guard.step(0.0)
    address = urlsplit(url)
    with ExitStack() as lines:
        for _ in range(10):
            line = lines.enter_context(socket.create_connection((address.hostname, address.port)))
            line.settimeout(0.2)
            for _ in range(10):
                with suppress(OSError):
                    line.send(b"A\r\n" * 200_000)
        deadline = time.monotonic() + 20
        while other_bytes(operator) < 150 * MIB and time.monotonic() < deadline:
            time.sleep(0.1)
        for second in range(1, 6):
            guard.step(float(second))
        assert other_bytes(operator) < 100 * MIB


def test_guard_frees_memory_also_if_redis_has_none_left(
    url: str, operator: "redis.Redis[bytes]", guard: RedisGuard
) -> None:
    """Redis then refuses each command of a transaction."""
    guard.step(0.0)
    with ExitStack() as lines:
        # Requests that are not complete: the last of two values is missing.
        address = logins.with_login(url, logins.sender(CELLS[0]), KEY)
        for _ in range(16):
            client = lines.enter_context(redis.Redis.from_url(address))
            connection = client.connection_pool.get_connection()
            connection.connect()
            value = b"x" * (7 * MIB)
            connection.send_packed_command(
                [b"*4\r\n$5\r\nLPUSH\r\n$7\r\ninbox.3\r\n$%d\r\n" % len(value), value, b"\r\n"]
            )
        wait_for_memory(operator, 100)
        operator.config_set("maxmemory", 100 * MIB)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            push(url, CELLS[1], b"x")
        found = guard.step(1.0)
    assert closed(found) == [CELLS[0]]
    assert push(url, CELLS[1], b"x")
