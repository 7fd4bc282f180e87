"""Keep cells from using up Redis: its memory by messages, its connections, its buffers.

A cell may send whatever it wants with its own logins, also what the inbox drops unread. The guard
drops what a shard cannot hold, and closes the logins of a cell that sends or connects too much.
"""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from uuid import uuid4

import redis

from controlplane.contract.wire import logins
from controlplane.contract.wire.queues import INBOX_QUEUES, inbox_queue
from controlplane.domain.cells.flood_search import (
    FloodSearch,
    SearchResult,
    continue_search,
    start_search,
)
from controlplane.outbox.redis_load import Connection, ListSize, RedisLoad, ServerLoad

STEP_SECONDS = 1.0

MAX_BYTES = 64 << 20
MAX_MESSAGES = 50_000
"""What a shard holds. Cells send again what is dropped, because they keep each report until it is
acknowledged. With the inbox away for ten minutes, a shard of 600 cells gets less.
"""

FLOOD_BYTES = 8 << 20
FLOOD_MESSAGES = 10_000
"""What a flooded shard gains in a second beyond what the inbox reads. A busy cell sends 30 KB a
second; one that is back after an outage sends all that it kept, for a second or two.
"""

FLOODED_STEPS = 3
"""Consecutive steps with a flood before its sender is searched for."""

MAX_CONNECTIONS = 32
"""Connections of one login. A cell has four for both."""

MAX_BUFFER_BYTES = 64 << 20
"""Memory for the connections of one login: unfinished requests, and unread responses."""

CONNECTED_STEPS = 3
"""Consecutive steps in which a login has too many connections before it is closed."""

CLOSED_SECONDS = 60
LONGEST_CLOSED_SECONDS = 3600
"""How long the logins of a cell are closed; twice as long each time, up to an hour."""

LOGIN_SECONDS = 10
"""The age at which a connection without a login is ended, if many are open."""

LISTED_EVERY = 10
"""Steps between two lists of the connections, if nothing indicates an excess."""

LEASE = "cellrun:guard"
LEASE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class ClosedLogins:
    """The logins of a cell are closed."""

    cell: str
    seconds: int
    reason: str


@dataclass(frozen=True, slots=True)
class DroppedMessages:
    """Messages of a shard were dropped."""

    shard: str
    messages: int
    size_bytes: int


Finding = ClosedLogins | DroppedMessages


@dataclass(slots=True)
class _ShardState:
    """A shard: its size after the last step, and a search."""

    size: ListSize | None = None
    flooded_steps: int = 0
    search: FloodSearch | None = None


@dataclass(slots=True)
class _GuardState:
    """What the guard remembers; lost with its connection or its lease."""

    shards: dict[str, _ShardState] = field(
        default_factory=lambda: {n: _ShardState() for n in INBOX_QUEUES}
    )
    closed_until: dict[str, float] = field(default_factory=dict)
    times_closed: Counter[str] = field(default_factory=Counter)
    crowded_steps: Counter[str] = field(default_factory=Counter)
    at: float | None = None
    steps: int = 0


class RedisGuard:
    """Limits what cells use of Redis, in steps of about a second.

    Only one process is the guard at a time. Whatever it closes, its successor opens.
    """

    def __init__(self, load: RedisLoad, *, manages_users: bool) -> None:
        """`manages_users`: cells have logins of their own; otherwise only lists are limited."""
        self._load = load
        self._manages_users = manages_users
        self._owner = uuid4().hex
        self._state: _GuardState | None = None

    def step(self, seconds: float) -> list[Finding]:
        """Measure and limit; return what was done. `seconds`: of a clock that is never set back.

        Raise redis.RedisError; the next step begins anew.
        """
        try:
            return self._step(seconds)
        except redis.RedisError:
            self._state = None
            raise

    def stop(self) -> None:
        """End searches and the lease, so that a successor begins at once. Raise RedisError."""
        state, self._state = self._state, None
        if state is not None:
            searches = [shard.search for shard in state.shards.values() if shard.search]
            blocked = {cell for search in searches for cell in search.blocked}
            self._load.open_logins(map(logins.sender, blocked - state.closed_until.keys()))
            self._load.release(LEASE, self._owner)

    def _step(self, seconds: float) -> list[Finding]:
        if not self._load.acquire(LEASE, self._owner, seconds=LEASE_SECONDS):
            self._state = None
            return []
        if self._state is None:
            self._state = _GuardState()
            if self._manages_users:
                self._open_all()
        state = self._state
        elapsed = STEP_SECONDS if state.at is None else max(seconds - state.at, 0.1)
        state.at, state.steps = seconds, state.steps + 1
        self._open_due(state, seconds)
        load = self._load.measure(INBOX_QUEUES)
        found: list[Finding] = []
        for name, size in load.lists.items():
            found += self._limit(state, name, size, elapsed, seconds)
        is_due = state.steps % LISTED_EVERY == 1 or state.crowded_steps or _is_crowded(load)
        if self._manages_users and is_due:
            found += self._limit_connections(state, load, seconds)
        return found

    def _open_all(self) -> None:
        """Open what a former guard, or a file of users from its time, left closed."""
        users = self._load.users(logins.sender("")) | self._load.users(logins.receiver(""))
        self._load.open_logins(name for name, is_open in users.items() if not is_open)

    def _open_due(self, state: _GuardState, seconds: float) -> None:
        due = [cell for cell, until in state.closed_until.items() if until <= seconds]
        for cell in due:
            del state.closed_until[cell]
        if due:
            self._load.open_logins(user for cell in due for user in _logins(cell))

    def _limit(
        self, state: _GuardState, name: str, size: ListSize, elapsed: float, seconds: float
    ) -> list[Finding]:
        shard = state.shards[name]
        is_flooded = shard.size is not None and _is_flood(shard.size, size, elapsed)
        shard.flooded_steps = shard.flooded_steps + 1 if is_flooded else 0
        shard.size = size
        found: list[Finding] = []
        if size.size_bytes > MAX_BYTES or size.messages > MAX_MESSAGES:
            found.append(self._trim(name, shard, size))
        if shard.search is not None:
            result = continue_search(shard.search, is_flooded=is_flooded)
        elif shard.flooded_steps >= FLOODED_STEPS:
            result = start_search(self._senders(name, besides=state.closed_until))
        else:
            return found
        before = shard.search.blocked if shard.search else frozenset()
        shard.search = result if isinstance(result, FloodSearch) else None
        after = shard.search.blocked if shard.search else frozenset()
        self._load.open_logins(map(logins.sender, before - after - state.closed_until.keys()))
        self._load.close_logins(map(logins.sender, after - before))
        if isinstance(result, SearchResult):
            shard.flooded_steps = 0
            if result.culprit is not None:
                found.append(self._close(state, result.culprit, f"it floods {name}", seconds))
        return found

    def _trim(self, name: str, shard: _ShardState, size: ListSize) -> DroppedMessages:
        """Drop the newest half until the rest is half of what a shard holds."""
        rest = size
        while rest.size_bytes > MAX_BYTES // 2 or rest.messages > MAX_MESSAGES // 2:
            if rest.messages <= 1:
                break
            self._load.keep_oldest(name, rest.messages // 2)
            rest = self._load.measure([name]).lists[name]
        shard.size = rest
        return DroppedMessages(
            name, size.messages - rest.messages, size.size_bytes - rest.size_bytes
        )

    def _senders(self, shard: str, *, besides: Container[str]) -> list[str]:
        if not self._manages_users:
            return []
        prefix = logins.sender("")
        cells = [user.removeprefix(prefix) for user in self._load.users(prefix)]
        return [cell for cell in cells if inbox_queue(cell) == shard and cell not in besides]

    def _limit_connections(
        self, state: _GuardState, load: ServerLoad, seconds: float
    ) -> list[Finding]:
        listed = self._load.connections()
        if load.connections > load.max_connections // 2:
            self._load.end_connections_by_id(one.id for one in listed if _is_without_login(one))
        excess = _find_excess(listed)
        self._load.end_connections(excess)
        state.crowded_steps = Counter({user: state.crowded_steps[user] + 1 for user in excess})
        found: list[Finding] = []
        for user, reason in excess.items():
            cell = user.partition(".")[2]
            is_due = state.crowded_steps[user] >= CONNECTED_STEPS
            if is_due and cell not in state.closed_until:
                found.append(self._close(state, cell, reason, seconds))
        return found

    def _close(self, state: _GuardState, cell: str, reason: str, seconds: float) -> ClosedLogins:
        times = state.times_closed[cell]
        state.times_closed[cell] += 1
        duration = min(CLOSED_SECONDS << min(times, 10), LONGEST_CLOSED_SECONDS)
        state.closed_until[cell] = seconds + duration
        self._load.close_logins(_logins(cell))
        return ClosedLogins(cell, duration, reason)


def _logins(cell: str) -> tuple[str, str]:
    return logins.sender(cell), logins.receiver(cell)


def _is_flood(before: ListSize, now: ListSize, elapsed: float) -> bool:
    """Return whether a list grows as by a flood."""
    return (
        now.size_bytes - before.size_bytes > FLOOD_BYTES * elapsed
        or now.messages - before.messages > FLOOD_MESSAGES * elapsed
    )


def _is_crowded(load: ServerLoad) -> bool:
    """Return whether connections are many, or their buffers large."""
    return load.connections > load.max_connections // 2 or load.buffer_bytes > MAX_BUFFER_BYTES


def _is_without_login(one: Connection) -> bool:
    return one.command in {"NULL", "auth", "hello"} and one.age_seconds >= LOGIN_SECONDS


def _find_excess(listed: Iterable[Connection]) -> dict[str, str]:
    """Return the logins of cells with too many connections, or too much memory for them."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    prefixes = (logins.sender(""), logins.receiver(""))
    for one in listed:
        if one.user.startswith(prefixes):
            counts[one.user] += 1
            sizes[one.user] += one.size_bytes
    found = {}
    for user, count in counts.items():
        if count > MAX_CONNECTIONS:
            found[user] = f"it has {count} connections to Redis"
        elif sizes[user] > MAX_BUFFER_BYTES:
            found[user] = f"its connections to Redis occupy {sizes[user] >> 20} MiB"
    return found
