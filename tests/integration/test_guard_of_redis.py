"""Cells that use up Redis with their own logins: the guard limits them, and no other cell."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from controlplane.contract.wire import logins, queues
from controlplane.inbox.guard import ClosedLogins, DroppedMessages, Finding, RedisGuard
from controlplane.outbox.redis_control import RedisControl
from tests.harness.cell_logins import redis_with_cells

KEY = b"k" * 32
SHARD = "inbox.3"
CELLS = list(islice((f"c{n}" for n in count() if queues.inbox_queue(f"c{n}") == SHARD), 20))
OTHER_SHARD = "inbox.4"
MIB = 1 << 20
SHARD_BYTES = 64 * MIB
"""What a shard may hold, as docs/cells.md says."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a Redis of its own, with the users of 20 cells of one shard."""
    with redis_with_cells(tmp_path, CELLS, KEY) as address:
        yield address


@pytest.fixture
def operator(url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def guard(url: str) -> Iterator[RedisGuard]:
    load = RedisControl(url)
    yield RedisGuard(load, manages_users=True)
    load.close()


def push(url: str, cell: str, *texts: bytes) -> bool:
    """Add messages with the login of a cell; return whether Redis permits it."""
    try:
        with redis.Redis.from_url(logins.with_login(url, logins.sender(cell), KEY)) as client:
            client.lpush(SHARD, *texts)
    except redis.exceptions.AuthenticationError:
        return False
    return True


def flood(url: str, *cells: str, mib: int = 20) -> set[str]:
    """Add garbage with the logins of cells; return the cells that could."""
    return {cell for cell in cells if push(url, cell, *[b"x" * MIB] * mib)}


def closed(found: list[Finding]) -> list[str]:
    return [one.cell for one in found if isinstance(one, ClosedLogins)]


def flood_until_closed(guard: RedisGuard, url: str, *cells: str) -> tuple[list[str], int]:
    """Flood the shard in each second, until the guard closes a login; return its cell and when."""
    for second in range(30):
        found = guard.step(float(second))
        if closed(found):
            return closed(found), second
        flood(url, *cells)
    raise AssertionError("no login was closed")


def test_shard_holds_a_limited_part_of_memory(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """The oldest messages remain, which the inbox reads next."""
    guard.step(0.0)
    assert push(url, CELLS[0], b"first")
    flood(url, CELLS[1], mib=200)
    found = guard.step(1.0)
    assert operator.memory_usage(SHARD, samples=0) <= SHARD_BYTES
    [trimmed] = [one for one in found if isinstance(one, DroppedMessages)]
    assert (trimmed.shard, trimmed.messages) == (SHARD, 201 - operator.llen(SHARD))
    assert operator.rpop(SHARD) == b"first"
    assert [one for one in guard.step(2.0) if isinstance(one, DroppedMessages)] == []


def test_many_short_messages_are_limited_too(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    guard.step(0.0)
    for _ in range(30):
        push(url, CELLS[0], *[b"x"] * 10_000)
    guard.step(1.0)
    assert 0 < operator.llen(SHARD) <= 50_000


def test_backlog_within_the_limit_is_kept(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """Ten minutes without the inbox: 20,000 messages of 1 KB."""
    for _ in range(20):
        push(url, CELLS[0], *[b"x" * 1000] * 1000)
    assert [guard.step(float(second)) for second in range(20)] == [[]] * 20
    assert operator.llen(SHARD) == 20_000


@pytest.mark.parametrize("guilty", [CELLS[0], CELLS[7], CELLS[19]])
def test_login_of_a_cell_that_floods_its_shard_is_closed(
    guard: RedisGuard, url: str, guilty: str, operator: "redis.Redis[bytes]"
) -> None:
    """Its garbage carries no name: the guard finds the cell among 20 of the shard."""
    cells, second = flood_until_closed(guard, url, guilty)
    assert (cells, second <= 15) == ([guilty], True)
    assert flood(url, *CELLS, mib=1) == set(CELLS) - {guilty}
    with (
        redis.Redis.from_url(logins.with_login(url, logins.receiver(guilty), KEY)) as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.ping()
    # The login opens after a minute.
    guard.step(second + 59.0)
    assert not flood(url, guilty, mib=1)
    guard.step(second + 61.0)
    assert flood(url, guilty, mib=1)


def test_login_that_floods_again_is_closed_for_longer(guard: RedisGuard, url: str) -> None:
    _, first = flood_until_closed(guard, url, CELLS[3])
    at = float(first + 61)
    found: list[Finding] = []
    while not closed(found):
        at += 1
        found = guard.step(at)
        flood(url, CELLS[3])
    assert [one.seconds for one in found if isinstance(one, ClosedLogins)] == [120]


def test_two_cells_that_flood_are_both_found(guard: RedisGuard, url: str) -> None:
    guilty = {CELLS[2], CELLS[15]}
    found: list[str] = []
    for second in range(40):
        found += closed(guard.step(float(second)))
        flood(url, *guilty)
    assert set(found) == guilty


def test_flood_of_a_login_of_the_operator_closes_no_login_of_a_cell(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """As of a cell that still uses the login that all cells share."""
    blocked = 0
    for second in range(60):
        assert not closed(guard.step(float(second)))
        operator.lpush(SHARD, *[b"x" * MIB] * 20)
        blocked += len(flood(url, *CELLS[:1], mib=1)) == 0
    # The search is not repeated at once.
    assert 0 < blocked < 15


def test_login_that_an_operator_opens_is_closed_again(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    cells, second = flood_until_closed(guard, url, CELLS[3])
    operator.execute_command("ACL", "SETUSER", logins.sender(CELLS[3]), "on")
    found: list[str] = []
    for later in range(second + 1, second + 30):
        found += closed(guard.step(float(later)))
        flood(url, CELLS[3])
    assert set(found) <= set(cells)
    assert flood(url, *CELLS, mib=1) == set(CELLS) - set(cells)


def test_login_whose_time_is_over_does_not_open_during_a_search(
    guard: RedisGuard, url: str
) -> None:
    """Two cells: the first floods again when its login opens, while the second is searched."""
    _, second = flood_until_closed(guard, url, CELLS[0])
    found: list[str] = []
    for later in range(second + 1, second + 90):
        found += closed(guard.step(float(later)))
        flood(url, CELLS[0], *(CELLS[9:10] if later > second + 54 else ()))
    assert set(found) <= {CELLS[0], CELLS[9]}
    assert CELLS[9] in found


def test_short_pauses_of_a_flood_do_not_prevent_the_search(guard: RedisGuard, url: str) -> None:
    """Two seconds of flood, one without."""
    can_send = True
    for second in range(20):
        guard.step(float(second))
        if second % 3:
            can_send = can_send and bool(flood(url, CELLS[11]))
    assert not can_send


def test_short_messages_do_not_hide_long_ones(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    guard.step(0.0)
    flood(url, CELLS[0], mib=200)
    for _ in range(30):
        push(url, CELLS[0], *[b"x" * 4_300] * 20)
    guard.step(1.0)
    assert operator.memory_usage(SHARD, samples=0) <= SHARD_BYTES


def test_guard_starts_before_redis_and_continues_after_an_error() -> None:
    control = RedisControl("redis://127.0.0.1:1/0")
    guard = RedisGuard(control, manages_users=True)
    for _ in range(2):
        with pytest.raises(redis.exceptions.ConnectionError):
            guard.step(0.0)
    control.close()


def test_login_stays_closed_after_an_error(
    guard: RedisGuard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = flood_until_closed(guard, url, CELLS[4])

    def fail(*_: object) -> None:
        raise redis.exceptions.TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(RedisControl, "measure", fail)
        with pytest.raises(redis.exceptions.TimeoutError):
            guard.step(second + 1.0)
    guard.step(second + 2.0)
    assert not flood(url, CELLS[4], mib=1)
    assert flood(url, *CELLS, mib=1) == set(CELLS) - {CELLS[4]}


def test_flood_that_ends_closes_no_login(guard: RedisGuard, url: str) -> None:
    """In the middle of the search; then every cell may send again."""
    for last in range(3, 8):
        for second in range(30):
            assert not closed(guard.step(float(100 * last + second)))
            if second < last:
                flood(url, CELLS[5])
        assert flood(url, *CELLS, mib=1) == set(CELLS)


def test_connection_ends_at_once_when_a_login_is_closed(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    flood_until_closed(guard, url, CELLS[1])
    assert logins.sender(CELLS[1]) not in {one["user"] for one in operator.client_list()}


def test_login_with_too_many_connections_loses_them_and_is_closed(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    def connect(sockets: ExitStack, cell: str, number: int) -> int:
        address, opened = logins.with_login(url, logins.receiver(cell), KEY), 0
        for _ in range(number):
            client = sockets.enter_context(redis.Redis.from_url(address))
            try:
                client.ping()
                opened += 1
            except redis.exceptions.AuthenticationError:
                break
        return opened

    found: list[Finding] = []
    with ExitStack() as sockets:
        assert connect(sockets, CELLS[8], 4) == 4
        for second in range(20):
            connect(sockets, CELLS[9], 40)
            found += guard.step(float(second))
            if closed(found):
                break
        users = [one["user"] for one in operator.client_list()]
        assert closed(found) == [CELLS[9]]
        assert users.count(logins.receiver(CELLS[9])) == 0
        assert users.count(logins.receiver(CELLS[8])) == 4
        assert connect(sockets, CELLS[9], 1) == 0


def test_connections_without_a_login_end_if_most_are_taken(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """They are ended after ten seconds, before they keep others from connecting."""
    operator.config_set("maxclients", 40)
    host, port = urlsplit(url).hostname, urlsplit(url).port
    guard.step(0.0)
    with ExitStack() as sockets:
        lines = [sockets.enter_context(socket.create_connection((host, port))) for _ in range(30)]
        lines[0].settimeout(20)
        deadline = time.monotonic() + 60
        while not any(
            int(one["age"]) >= 11 for one in operator.client_list() if one["cmd"] == "NULL"
        ):
            assert time.monotonic() < deadline, "no connection becomes old"
        guard.step(1.0)
        assert lines[0].recv(1) == b""
        assert operator.ping()


def test_unread_responses_of_a_cell_are_limited(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """PING returns what it gets, and Redis keeps it until the client reads it."""
    guard.step(0.0)
    address = logins.with_login(url, logins.sender(CELLS[0]), KEY)
    with ExitStack() as lines:
        for _ in range(20):
            client = lines.enter_context(redis.Redis.from_url(address))
            connection = client.connection_pool.get_connection()
            connection.connect()
            for _ in range(6):
                connection.send_command("PING", b"x" * MIB)
        guard.step(1.0)
        owned = sum(
            int(one["tot-mem"])
            for one in operator.client_list()
            if one["user"] == logins.sender(CELLS[0])
        )
        assert owned <= SHARD_BYTES


def test_next_guard_opens_what_the_last_one_closed(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    flood_until_closed(guard, url, CELLS[4])
    assert not flood(url, CELLS[4], mib=1)
    successor = RedisGuard(RedisControl(url), manages_users=True)
    # As long as the first holds its lease, the second does nothing.
    assert (successor.step(0.0), flood(url, CELLS[4], mib=1)) == ([], set())
    operator.delete("cellrun:guard")
    successor.step(1.0)
    assert flood(url, CELLS[4], mib=1)
    # The first continues without its lease, and closes nothing.
    assert guard.step(40.0) == []


def test_guard_that_stops_opens_the_logins_of_a_search(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    second = 0
    while flood(url, *CELLS, mib=1) == set(CELLS):
        flood(url, CELLS[5])
        assert not closed(guard.step(float(second)))
        second += 1
    guard.stop()
    assert flood(url, *CELLS, mib=1) == set(CELLS)
    assert not operator.exists("cellrun:guard")


def test_deleted_users_are_not_created_again(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    _, second = flood_until_closed(guard, url, CELLS[6])
    users = {logins.sender(CELLS[6]), logins.receiver(CELLS[6])}
    operator.acl_deluser(*users)
    guard.step(second + 61.0)
    assert not users & set(operator.acl_users())


def test_redis_without_free_memory_is_relieved(
    guard: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """Redis refuses all writes, also those of the guard; it accepts deletions."""
    flood(url, CELLS[0], mib=100)
    operator.config_set("maxmemory", 50 * MIB)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        operator.lpush(OTHER_SHARD, "x")
    guard.step(0.0)
    assert operator.lpush(OTHER_SHARD, "x")
