"""Cells that use up Redis with their own logins: the guard limits them, and no other cell."""

import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest
import redis

from controlplane.contract.wire import logins, queues
from controlplane.domain.cells.redis_users import redis_users
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


class ReadShard:
    """A guard, and an inbox that reads so many messages of the shard after each of its steps."""

    def __init__(
        self, control: RedisControl, guard: RedisGuard, operator: "redis.Redis[bytes]"
    ) -> None:
        self._control, self._guard, self._operator = control, guard, operator
        self.rate = 10  # of 1 MiB, half of a flood
        self.stop = guard.stop

    def step(self, now: float) -> list[Finding]:
        found = self._guard.step(now)
        self._operator.ltrim(SHARD, 0, -self.rate - 1)
        return found

    def blocked(self) -> set[str]:
        """Return the cells that may not send."""
        users = self._control.users(logins.sender(""))
        return {cell for cell in CELLS if not users[logins.sender(cell)]}


@pytest.fixture
def control(url: str) -> Iterator[RedisControl]:
    control = RedisControl(url)
    yield control
    control.close()


@pytest.fixture
def unread(control: RedisControl) -> RedisGuard:
    """A guard without an inbox that reads the shard."""
    return guard_of(control)


@pytest.fixture
def guard(control: RedisControl, unread: RedisGuard, operator: "redis.Redis[bytes]") -> ReadShard:
    return ReadShard(control, unread, operator)


def guard_of(
    control: RedisControl, *, manages_users: bool = True, lease_seconds: float = 30.0
) -> RedisGuard:
    return RedisGuard(
        control,
        manages_users=manages_users,
        heartbeat_seconds=5.0,
        lease_seconds=lease_seconds,
    )


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


def connect(sockets: ExitStack, url: str, cell: str, number: int) -> int:
    """Open connections with the login that receives; return how many Redis permits."""
    address = logins.with_login(url, logins.receiver(cell), KEY)
    for opened in range(number):
        client = sockets.enter_context(redis.Redis.from_url(address))
        try:
            client.ping()
        except redis.exceptions.AuthenticationError:
            return opened
    return number


def send(lines: ExitStack, url: str, user: str, *commands: tuple[bytes | str | int, ...]) -> None:
    """Send commands with a login, on a connection for each, and read no responses."""
    for command in commands:
        client = lines.enter_context(redis.Redis.from_url(logins.with_login(url, user, KEY)))
        connection = client.connection_pool.get_connection()
        connection.connect()
        connection.send_command(*command)


def wait_for_keys(number: int, first: int = 0) -> tuple[bytes | str | int, ...]:
    """Return a command that waits for so many queues of the first cell."""
    queue = queues.cell_queue(CELLS[0], "")
    return ("BRPOP", *(f"{queue}{n:032}" for n in range(first, first + number)), 0)


def other_bytes(operator: "redis.Redis[bytes]") -> int:
    return operator.info()["used_memory"] - operator.info()["used_memory_startup"]


def wait_for_memory(operator: "redis.Redis[bytes]", mib: int) -> None:
    """Wait until Redis has read what was sent."""
    deadline = time.monotonic() + 60
    while other_bytes(operator) < mib * MIB:
        assert time.monotonic() < deadline, "Redis does not use the memory"


class Blocks:
    """How long cells were blocked: the longest time, and in how many seconds any was."""

    def __init__(self, cells: set[str]) -> None:
        self._free_at = dict.fromkeys(cells, 0)
        self.longest = self.seconds = 0

    def note(self, guard: ReadShard, second: int) -> None:
        blocked = guard.blocked() & self._free_at.keys()
        self.seconds += bool(blocked)
        self._free_at |= dict.fromkeys(self._free_at.keys() - blocked, second)
        self.longest = max(self.longest, second - min(self._free_at.values()))


def closed(found: list[Finding]) -> list[str]:
    return [one.cell for one in found if isinstance(one, ClosedLogins)]


def flood_until_closed(guard: ReadShard, url: str, *cells: str) -> tuple[list[str], int]:
    """Flood the shard in each second, until the guard closes a login; return its cell and when."""
    for second in range(100):
        found = guard.step(float(second))
        if closed(found):
            return closed(found), second
        flood(url, *cells)
    raise AssertionError("no login was closed")


def test_shard_holds_a_limited_part_of_memory(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """The oldest messages remain, which the inbox reads next."""
    unread.step(0.0)
    assert push(url, CELLS[0], b"first")
    flood(url, CELLS[1], mib=200)
    found = unread.step(1.0)
    assert operator.memory_usage(SHARD, samples=0) <= SHARD_BYTES
    [trimmed] = [one for one in found if isinstance(one, DroppedMessages)]
    assert (trimmed.shard, trimmed.messages) == (SHARD, 201 - operator.llen(SHARD))
    assert operator.rpop(SHARD) == b"first"
    assert [one for one in unread.step(2.0) if isinstance(one, DroppedMessages)] == []


def test_many_short_messages_are_limited_too(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    unread.step(0.0)
    for _ in range(30):
        push(url, CELLS[0], *[b"x"] * 10_000)
    unread.step(1.0)
    assert 0 < operator.llen(SHARD) <= 50_000


def test_backlog_within_the_limit_is_kept(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """Ten minutes without the inbox: 20,000 messages of 1 KB."""
    for _ in range(20):
        push(url, CELLS[0], *[b"x" * 1000] * 1000)
    assert [unread.step(float(second)) for second in range(20)] == [[]] * 20
    assert operator.llen(SHARD) == 20_000


@pytest.mark.parametrize("flooding", [CELLS[0], CELLS[7], CELLS[19]])
def test_login_of_a_cell_that_floods_its_shard_is_closed(
    guard: ReadShard, url: str, flooding: str, operator: "redis.Redis[bytes]"
) -> None:
    """Its garbage carries no name: the guard finds the cell among 20 of the shard."""
    cells, second = flood_until_closed(guard, url, flooding)
    assert (cells, second <= 80) == ([flooding], True)
    assert flood(url, *CELLS, mib=1) == set(CELLS) - {flooding}
    with (
        redis.Redis.from_url(logins.with_login(url, logins.receiver(flooding), KEY)) as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.ping()
    # The login opens after a minute.
    guard.step(second + 59.0)
    assert not flood(url, flooding, mib=1)
    guard.step(second + 61.0)
    assert flood(url, flooding, mib=1)


def test_login_that_floods_again_is_closed_for_longer(guard: ReadShard, url: str) -> None:
    _, first = flood_until_closed(guard, url, CELLS[3])
    at = float(first + 61)
    found: list[Finding] = []
    while not closed(found):
        at += 1
        found = guard.step(at)
        flood(url, CELLS[3])
    assert [one.seconds for one in found if isinstance(one, ClosedLogins)] == [120]


def test_two_cells_that_flood_are_both_found(guard: ReadShard, url: str) -> None:
    flooding = {CELLS[2], CELLS[15]}
    found: list[str] = []
    for second in range(120):
        found += closed(guard.step(float(second)))
        flood(url, *flooding)
    assert set(found) == flooding


def test_flood_of_a_login_of_the_operator_closes_no_login_of_a_cell(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
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
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    cells, second = flood_until_closed(guard, url, CELLS[3])
    operator.execute_command("ACL", "SETUSER", logins.sender(CELLS[3]), "on")
    found: list[str] = []
    for later in range(second + 1, second + 45):
        found += closed(guard.step(float(later)))
        flood(url, CELLS[3])
    assert set(found) <= set(cells)
    assert flood(url, *CELLS, mib=1) == set(CELLS) - set(cells)


def test_login_whose_time_is_over_opens_during_a_search(guard: ReadShard, url: str) -> None:
    """It falsifies no result: another cell floods, and the first one sometimes."""
    _, second = flood_until_closed(guard, url, CELLS[0])
    found: list[str] = []
    has_sent = False
    for later in range(second + 1, second + 120):
        found += closed(guard.step(float(later)))
        if later > second + 54:
            flood(url, CELLS[9])
        if later % 3 == 0:
            has_sent = bool(flood(url, CELLS[0])) or has_sent
        if found:
            break
    assert set(found) < {CELLS[0], CELLS[9]}
    assert has_sent


@pytest.mark.parametrize("seed", range(3))
def test_cell_that_pauses_its_flood_at_random_is_found(
    guard: ReadShard, url: str, seed: int
) -> None:
    """Most of the time it is quiet. A search among 20 cells needs six seconds of a flood, besides
    those in the first second in which the cell may send and no other.
    """
    choose, flooding = Random(seed), CELLS[11]
    found: list[str] = []
    floods = 0
    for second in range(600):
        found = closed(guard.step(float(second)))
        if found:
            break
        if choose.random() < 0.4:
            floods += bool(flood(url, flooding))
    assert found == [flooding]
    assert floods <= 3 + 6 + 2


def test_cell_that_floods_only_without_a_search_floods_a_few_seconds(
    guard: ReadShard, url: str
) -> None:
    """It stops when its login is refused, and resumes after 20 seconds without a refusal."""
    floods = blocked = free_since = 0
    for second in range(600):
        assert not closed(guard.step(float(second)))
        if not push(url, CELLS[11], b"x"):
            blocked, free_since = blocked + 1, second
        elif second - free_since > 20:
            floods += bool(flood(url, CELLS[11]))
    # Four searches of 30, 60, 120 and 240 seconds, each after three seconds of a flood.
    assert floods <= 5 * 3
    assert 150 < blocked < 350


@pytest.mark.parametrize("seed", range(2))
def test_no_other_cell_is_blocked_for_longer_than_two_windows(
    guard: ReadShard, url: str, seed: int
) -> None:
    """Whenever two cells flood, or have themselves closed for their connections."""
    choose, hostile, watched = Random(seed), CELLS[:2], Blocks(set(CELLS[2:]))
    found = []
    with ExitStack() as sockets:
        for second in range(150):
            found += closed(guard.step(float(second)))
            watched.note(guard, second)
            for cell in hostile:
                action = choose.choice(["quiet", "flood", "connect"])
                if action == "flood":
                    flood(url, cell)
                elif action == "connect" and second > 30:
                    connect(sockets, url, cell, 40)
    assert watched.seconds > 50  # a search
    assert set(found) <= set(hostile)
    assert watched.longest <= 12


@pytest.mark.parametrize("begin", range(10))
def test_cell_that_leaves_a_search_does_not_restart_it(
    guard: ReadShard, url: str, begin: int
) -> None:
    """It narrows the search, and is closed for its connections in one of the windows."""
    watched, floods, is_closed = Blocks(set(CELLS[1:])), 0, False
    with ExitStack() as sockets:
        for second in range(70):
            is_closed = bool(closed(guard.step(float(second)))) or is_closed
            watched.note(guard, second)
            if second < begin or is_closed:
                continue
            if floods < 5:
                floods += bool(flood(url, CELLS[0]))
            else:
                connect(sockets, url, CELLS[0], 40)
    assert is_closed
    assert watched.seconds > 10
    assert watched.longest <= 12


def test_cell_that_floods_after_it_left_the_search_is_found(guard: ReadShard, url: str) -> None:
    """It narrows the search to cells without itself, by its connections, and floods again."""
    floods, found = 0, []
    with ExitStack() as sockets:
        for second in range(300):
            found += guard.step(float(second))
            reasons = [one.reason for one in found if isinstance(one, ClosedLogins)]
            if any("floods" in reason for reason in reasons):
                break
            if floods < 5 or reasons:
                floods += bool(flood(url, CELLS[0]))
            else:
                connect(sockets, url, CELLS[0], 40)
    assert set(closed(found)) == {CELLS[0]}
    assert "floods" in reasons[-1]
    assert floods <= 5 + 12


def narrow_to_a_busy_cell(guard: ReadShard, url: str, *, mib: int, seconds: int) -> list[Finding]:
    """Narrow a search to two cells, of which one is busy: it sends what it kept when it may.

    It needs so many seconds to send it. Return what the guard finds first, if anything.
    """
    order = sorted(CELLS)
    hostile, busy = order[:2]
    watched, kept, is_alone = Blocks(set(order[2:])), 0, False
    for second in range(400):
        if found := guard.step(float(second)):
            return found
        watched.note(guard, second)
        blocked = guard.blocked()
        if busy in blocked:
            kept = seconds
        elif kept:
            flood(url, busy, mib=mib)
            kept -= 1
        is_alone = is_alone or blocked == set(CELLS) - {busy}
        is_narrow = set(CELLS) - blocked <= {hostile, busy} and len(blocked) < len(CELLS)
        if second < 100 and not is_alone and not is_narrow:
            flood(url, hostile)
    assert is_alone
    assert watched.longest <= 12
    return []


@pytest.mark.parametrize("mib", [3, 12])
def test_backlog_of_a_blocked_cell_does_not_close_it(guard: ReadShard, url: str, mib: int) -> None:
    assert narrow_to_a_busy_cell(guard, url, mib=mib, seconds=1) == []


def test_backlog_of_several_seconds_may_close_a_cell_for_a_minute(
    guard: ReadShard, url: str
) -> None:
    """It looks like a flood that pauses. The cell returns by itself."""
    [found] = narrow_to_a_busy_cell(guard, url, mib=12, seconds=3)
    assert isinstance(found, ClosedLogins)
    assert (found.cell, found.seconds) == (sorted(CELLS)[1], 60)


@pytest.mark.parametrize("sender", [CELLS[0], CELLS[19]])
def test_cell_that_floods_slowly_is_found(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]", sender: str
) -> None:
    """Each second it adds 1,900 messages more than the inbox reads."""
    guard.rate = 3_000
    found: list[str] = []
    for second in range(300):
        before = operator.llen(SHARD)
        found = closed(guard.step(float(second)))
        if found:
            break
        push(url, sender, *[b"x"] * (before + 1_900 - operator.llen(SHARD)))
    assert found == [sender]


def test_cell_that_keeps_its_shard_almost_full_is_found(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """It adds as much as the inbox reads, so no message is dropped."""
    guard.rate = 3_000
    found: list[Finding] = []
    for second in range(300):
        found += guard.step(float(second))
        if found:
            break
        room = min(49_000 - operator.llen(SHARD), guard.rate + 1_900)
        push(url, CELLS[7], *[b"x"] * room)
    assert [closed([one]) for one in found] == [[CELLS[7]]]


def test_inbox_that_reads_nothing_closes_no_login(guard: ReadShard, url: str) -> None:
    """The database is away, and all cells send. Each search ends, and the cells may send again."""
    guard.rate, watched = 0, Blocks(set(CELLS))
    for second in range(400):
        assert not closed(guard.step(float(second)))
        watched.note(guard, second)
        for cell in set(CELLS) - guard.blocked() if second % 5 == 0 else ():
            push(url, cell, *[b"x"] * 40)
    assert 10 < watched.seconds < 200
    assert watched.longest <= 12


def test_lease_of_a_few_windows_permits_no_search(
    control: RedisControl, operator: "redis.Redis[bytes]", url: str
) -> None:
    """A search could end it; the shard is limited nevertheless."""
    guard = ReadShard(control, guard_of(control, lease_seconds=15.0), operator)
    dropped = 0
    for second in range(8):
        dropped += sum(isinstance(one, DroppedMessages) for one in guard.step(float(second)))
        assert flood(url, CELLS[0], mib=100)
        assert not guard.blocked()
    assert dropped > 2


def test_cell_that_is_enrolled_during_a_search_falsifies_no_result(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """A new login is open in all windows, until the next."""
    new = next(f"new{n}" for n in count() if queues.inbox_queue(f"new{n}") == SHARD)
    found: list[str] = []
    for second in range(200):
        found += closed(guard.step(float(second)))
        if second < 8:
            flood(url, CELLS[0])
        elif second % 10 == 0 and not found:
            operator.execute_command("ACL", "DELUSER", logins.sender(new))
            for user, rules in redis_users(new, KEY).items():
                operator.execute_command("ACL", "SETUSER", user, *rules)
            assert flood(url, new)
    assert set(found) <= {new}


def test_flood_just_before_a_login_is_closed_closes_no_other_cell(
    guard: ReadShard, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell sends after the size of the shard is measured."""
    close_logins = RedisControl.close_logins

    def close_late(control: RedisControl, users: Iterable[str]) -> None:
        closing = set(users)
        if logins.sender(CELLS[0]) in closing:
            flood(url, CELLS[0])
        close_logins(control, closing)

    for second in range(3):
        guard.step(float(second))
        flood(url, CELLS[0])
    monkeypatch.setattr(RedisControl, "close_logins", close_late)
    found = [finding for second in range(3, 200) for finding in closed(guard.step(float(second)))]
    assert set(found) <= {CELLS[0]}


def test_short_messages_do_not_hide_long_ones(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    unread.step(0.0)
    flood(url, CELLS[0], mib=200)
    for _ in range(30):
        push(url, CELLS[0], *[b"x" * 4_300] * 20)
    unread.step(1.0)
    assert operator.memory_usage(SHARD, samples=0) <= SHARD_BYTES


def test_guard_starts_before_redis_and_continues_after_an_error() -> None:
    control = RedisControl("redis://127.0.0.1:1/0")
    guard = guard_of(control)
    for _ in range(2):
        with pytest.raises(redis.exceptions.ConnectionError):
            guard.step(0.0)
    control.close()


def test_login_stays_closed_after_an_error(
    guard: ReadShard, url: str, monkeypatch: pytest.MonkeyPatch
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


def test_flood_that_ends_closes_no_login(guard: ReadShard, url: str) -> None:
    """At any time in the search; half a minute later every cell may always send."""
    for last in range(4, 12):
        for second in range(last + 40):
            assert not closed(guard.step(float(second)))
            if second < last:
                flood(url, CELLS[5])
        assert flood(url, *CELLS, mib=1) == set(CELLS)
        guard.stop()


def test_connection_ends_at_once_when_a_login_is_closed(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    flood_until_closed(guard, url, CELLS[1])
    assert logins.sender(CELLS[1]) not in {one["user"] for one in operator.client_list()}


def test_login_with_too_many_connections_loses_them_and_is_closed(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    found: list[Finding] = []
    with ExitStack() as sockets:
        assert connect(sockets, url, CELLS[8], 4) == 4
        for second in range(20):
            connect(sockets, url, CELLS[9], 40)
            found += guard.step(float(second))
            if closed(found):
                break
        users = [one["user"] for one in operator.client_list()]
        assert closed(found) == [CELLS[9]]
        assert users.count(logins.receiver(CELLS[9])) == 0
        assert users.count(logins.receiver(CELLS[8])) == 4
        assert connect(sockets, url, CELLS[9], 1) == 0


def test_connections_without_a_login_end_if_most_are_taken(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """They are ended after ten seconds, before they keep others from connecting."""
    operator.config_set("maxclients", 40)
    host, port = urlsplit(url).hostname, urlsplit(url).port
    unread.step(0.0)
    with ExitStack() as sockets:
        lines = [sockets.enter_context(socket.create_connection((host, port))) for _ in range(30)]
        lines[0].settimeout(20)
        deadline = time.monotonic() + 60
        while not any(
            int(one["age"]) >= 11 for one in operator.client_list() if one["cmd"] == "NULL"
        ):
            assert time.monotonic() < deadline, "no connection becomes old"
        unread.step(1.0)
        assert lines[0].recv(1) == b""
        assert operator.ping()


def test_unread_responses_of_a_cell_are_limited(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """PING returns what it gets, and Redis keeps it until the client reads it."""
    unread.step(0.0)
    address = logins.with_login(url, logins.sender(CELLS[0]), KEY)
    with ExitStack() as lines:
        for _ in range(20):
            client = lines.enter_context(redis.Redis.from_url(address))
            connection = client.connection_pool.get_connection()
            connection.connect()
            for _ in range(6):
                connection.send_command("PING", b"x" * MIB)
        unread.step(1.0)
        owned = sum(
            int(one["tot-mem"])
            for one in operator.client_list()
            if one["user"] == logins.sender(CELLS[0])
        )
        assert owned <= SHARD_BYTES


@pytest.mark.parametrize(
    "commands",
    [
        [("HELLO", 2, "SETNAME", b"x" * 7 * MIB)] * 20,
        [wait_for_keys(150_000, first) for first in (0, 150_000, 300_000)],
    ],
    ids=["names", "keys"],
)
def test_memory_that_no_list_of_connections_shows_is_limited(
    unread: RedisGuard,
    url: str,
    operator: "redis.Redis[bytes]",
    commands: list[tuple[bytes | str | int, ...]],
) -> None:
    """Names of connections, and keys for which they wait. Redis needs no right to set a name."""
    with ExitStack() as lines:
        connect(lines, url, CELLS[1], 4)
        send(lines, url, logins.receiver(CELLS[0]), *commands)
        wait_for_memory(operator, 90)
        assert closed(unread.step(0.0)) == [CELLS[0]]
        assert other_bytes(operator) < 30 * MIB
        assert connect(lines, url, CELLS[0], 1) == 0
        assert connect(lines, url, CELLS[1], 1) == 1


def test_memory_that_no_single_cell_occupies_closes_none(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """Their connections end once, and again only if the memory grows as much."""
    with ExitStack() as lines:
        for _ in range(2):
            for cell in CELLS[1:]:
                name = ("HELLO", 2, "SETNAME", b"x" * 4 * MIB)
                send(lines, url, logins.receiver(cell), name)
            wait_for_memory(operator, 75)
            connect(lines, url, CELLS[0], 1)
            assert closed(unread.step(0.0)) == []
        users = [one["user"] for one in operator.client_list()]
        assert users.count(logins.receiver(CELLS[0])) == 1


def test_logs_of_redis_do_not_fill_the_memory(url: str, operator: "redis.Redis[bytes]") -> None:
    """An entry contains the name of the connection, and the key of a denied command."""
    address = logins.with_login(url, logins.sender(CELLS[0]), KEY)
    with redis.Redis.from_url(address, single_connection_client=True) as client:
        operator.config_set("slowlog-log-slower-than", 0)
        client.execute_command("HELLO", 3, "SETNAME", b"x" * 7 * MIB)
        for n in range(20):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.lpush(b"%08d" % n + b"x" * 7 * MIB, "x")
    operator.ping()
    assert other_bytes(operator) < 30 * MIB


def test_cell_that_waits_for_many_keys_is_closed(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """Redis does nothing else meanwhile. Other cells wait for one key."""
    found: list[str] = []
    with ExitStack() as lines:
        own_queue = queues.cell_queue(CELLS[1], "a" * 32)
        send(lines, url, logins.receiver(CELLS[1]), ("BRPOP", own_queue, 0))
        for second in range(20):
            send(lines, url, logins.receiver(CELLS[0]), wait_for_keys(50_000))
            wait_for_memory(operator, 4)
            found += closed(unread.step(float(second)))
            if found:
                break
        assert found == [CELLS[0]]
        users = [one["user"] for one in operator.client_list()]
        assert users.count(logins.receiver(CELLS[1])) == 1
        assert users.count(logins.receiver(CELLS[0])) == 0


def test_next_guard_opens_what_the_last_one_closed(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    flood_until_closed(guard, url, CELLS[4])
    assert not flood(url, CELLS[4], mib=1)
    successor = guard_of(RedisControl(url))
    # As long as the first holds its lease, the second does nothing.
    assert (successor.step(0.0), flood(url, CELLS[4], mib=1)) == ([], set())
    operator.delete("cellrun:guard")
    successor.step(1.0)
    assert flood(url, CELLS[4], mib=1)
    # The first continues without its lease, and closes nothing.
    assert guard.step(40.0) == []


def test_only_the_guard_renews_its_lease(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    guard.step(0.0)
    operator.expire("cellrun:guard", 600)
    successor = guard_of(RedisControl(url))
    for second in range(3):
        assert successor.step(float(second)) == []
    assert operator.ttl("cellrun:guard") > 500
    guard.step(1.0)
    assert operator.ttl("cellrun:guard") <= 5


def test_guard_that_stops_opens_the_logins_of_a_search(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    second = 0
    while flood(url, *CELLS, mib=1) == set(CELLS):
        flood(url, CELLS[5])
        assert not closed(guard.step(float(second)))
        second += 1
    guard.stop()
    assert flood(url, *CELLS, mib=1) == set(CELLS)
    assert not operator.exists("cellrun:guard")


def test_guard_without_users_opens_the_logins_that_were_closed_before(
    guard: ReadShard, url: str
) -> None:
    """CELLRUN_REDIS_USERS is disabled while the logins of a cell are closed."""
    flood_until_closed(guard, url, CELLS[4])
    guard.stop()
    guard_of(RedisControl(url), manages_users=False).step(0.0)
    assert flood(url, CELLS[4], mib=1)


def test_guard_without_users_needs_no_right_to_change_them(
    url: str, operator: "redis.Redis[bytes]"
) -> None:
    operator.execute_command(
        *("ACL", "SETUSER", "limited", "on", ">p", "~*", "&*", "+@all", "-acl")
    )
    host = urlsplit(url).netloc.rpartition("@")[2]
    flood(url, CELLS[0], mib=100)
    control = RedisControl(f"redis://limited:p@{host}/0")
    assert len(guard_of(control, manages_users=False).step(0.0)) == 1


def test_deleted_users_are_not_created_again(
    guard: ReadShard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    _, second = flood_until_closed(guard, url, CELLS[6])
    users = {logins.sender(CELLS[6]), logins.receiver(CELLS[6])}
    operator.acl_deluser(*users)
    guard.step(second + 61.0)
    assert not users & set(operator.acl_users())


def test_redis_without_free_memory_is_relieved(
    unread: RedisGuard, url: str, operator: "redis.Redis[bytes]"
) -> None:
    """Redis refuses all writes, also those of the guard; it accepts deletions."""
    flood(url, CELLS[0], mib=100)
    operator.config_set("maxmemory", 50 * MIB)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        operator.lpush(OTHER_SHARD, "x")
    unread.step(0.0)
    assert operator.lpush(OTHER_SHARD, "x")
