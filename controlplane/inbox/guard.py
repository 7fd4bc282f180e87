"""Keep cells from using up Redis: its memory by messages, its connections, its buffers.

A cell can send any content with its own logins, also content that the inbox discards. The guard
drops what a shard cannot hold, and closes the logins of a cell that sends or connects too much.
"""

from collections import Counter, deque
from collections.abc import Container, Iterable, Set
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from uuid import uuid4

from redis.exceptions import ResponseError

from controlplane.contract.wire import logins
from controlplane.contract.wire.queues import INBOX_QUEUES, inbox_queue
from controlplane.domain.cells.flood_search import FloodSearch, SearchResult, start_search
from controlplane.outbox.redis_control import Connection, ListSize, RedisControl, ServerLoad

STEP_SECONDS = 1.0

MAX_BYTES = 64 << 20
MAX_MESSAGES = 50_000
"""What a shard holds. Cells send each report again until it is acknowledged, so newer messages may
be dropped. Without the inbox, 300 cells send about 40,000 heartbeats to it in ten minutes.
"""

FLOOD_BYTES = 2 << 20
FLOOD_MESSAGES = 2_000
"""What a flooded shard gains in a second beyond what the inbox reads. A busy cell sends 30 KB a
second; one that is back after an outage sends all that it kept, for a second or two.
"""

LARGE_BYTES = 8 << 20
LARGE_MESSAGES = 10_000
"""A backlog that delays messages by some seconds. While it is as large, it is part of a flood."""

FLOODED_STEPS = 3
OBSERVED_SECONDS = 600
LARGE_STEPS = 5
"""A search starts if so many steps within this time had a flood, or dropped messages, or if in so
many consecutive steps the backlog was large.
"""

LEASE_WINDOWS = 4
"""A search needs a lease of so many windows: it blocks a cell for two, and a step."""

WATCH_WINDOWS = 6
LONGEST_WATCH_SECONDS = 3600
"""A search ends after so many windows without a flood; after twice as many if it starts within an
hour of the end of the last one, up to an hour: its sender may wait for the end.
"""

PAUSE_SECONDS = 60
"""The time until the next search of a shard that is flooded while none of its cells may log in."""

MAX_CONNECTIONS = 32
"""Connections of one login. A cell uses four in total."""

MAX_ARGUMENTS_BYTES = 1 << 20
"""Arguments of the commands of a login that receives. Redis needs 3 µs for each key that a `BRPOP`
names, in which it does nothing else; a cell names one, and publishes short events.
"""

MAX_OTHER_BYTES = 64 << 20
"""Growth of the memory besides the shards, after which the guard finds the logins that use it."""

MAX_LOGIN_BYTES = 16 << 20
"""Memory for the connections of one login. The longest message has 4.1 MB."""

EXCESS_STEPS = 3
"""Consecutive steps with an excess of a login, before the logins of its cell are closed."""

CLOSED_SECONDS = 60
LONGEST_CLOSED_SECONDS = 3600
"""How long the logins of a cell are closed; twice as long each time, up to an hour."""

DEFAULT_USER = "default"
"""The user of connections without a login. Connections with one are of another user, unless the
control plane itself logs in as the default user.
"""

LOGIN_SECONDS = 10
"""The age at which a connection without a login is ended; if the control plane is the default user,
only if many are open.
"""

LIST_STEPS = 10
"""Steps between two lists of the connections, if nothing indicates an excess."""

EMPTY = ListSize(0, 0)

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
    """The last size of a shard, the times of its last floods, and its present or next search.

    `window_size`: the size when the window opened; if a single cell may send, a step later.
    """

    size: ListSize | None = None
    large_steps: int = 0
    floods: deque[float] = field(default_factory=lambda: deque(maxlen=FLOODED_STEPS))
    search: FloodSearch | None = None
    search_at: float = -inf
    window_until: float = -inf
    window_size: ListSize = EMPTY
    is_first_step: bool = False
    watch_seconds: float = 0.0
    watch_until: float = -inf

    def end_search(
        self, result: FloodSearch | SearchResult, senders: Set[str], now: float
    ) -> Set[str]:
        """End the search, and return the senders that may log in."""
        self.search = None
        self.floods.clear()
        self.large_steps = 0
        if isinstance(result, FloodSearch):
            return senders
        self.watch_until = -inf
        if result.sender is None:
            self.search_at = now + PAUSE_SECONDS
        return senders - {result.sender}


@dataclass(slots=True)
class _GuardState:
    """The state of the guard, discarded when its lease is lost.

    `other_bytes`: memory besides the shards that is not of a single login.
    """

    shards: dict[str, _ShardState] = field(
        default_factory=lambda: {n: _ShardState() for n in INBOX_QUEUES}
    )
    closed_until: dict[str, float] = field(default_factory=dict)
    times_closed: Counter[str] = field(default_factory=Counter)
    excess_steps: Counter[str] = field(default_factory=Counter)
    other_bytes: int = 0
    at: float | None = None
    steps: int = 0


class RedisGuard:
    """Limits what cells use of Redis, in steps of about a second.

    Only one process is the guard at a time. Whatever it closes, its successor opens.
    """

    def __init__(
        self,
        control: RedisControl,
        *,
        manages_users: bool,
        heartbeat_seconds: float,
        lease_seconds: float,
    ) -> None:
        """`manages_users`: cells have logins of their own; otherwise only lists are limited.

        `heartbeat_seconds`: the length of a window of a search, so that each cell sends in its own.
        `lease_seconds`: of cells; with a short lease, which a search could end, there is none.
        """
        self._control = control
        self._window_seconds = max(heartbeat_seconds, 2 * STEP_SECONDS)
        self._manages_users = manages_users
        self._searches = manages_users and lease_seconds >= LEASE_WINDOWS * self._window_seconds
        self._owner = uuid4().hex
        self._state: _GuardState | None = None
        self._is_synced = False
        # Whether each connection of the default user is one without a login.
        self._is_named = False

    def step(self, now: float) -> list[Finding]:
        """Measure and limit; return the findings. `now`: seconds of a monotonic clock.

        Raise redis.RedisError; the next step ends all searches, and keeps closed logins closed.
        """
        try:
            return self._step(now)
        except Exception:
            self._is_synced = False
            raise

    def stop(self) -> None:
        """End searches and the lease, so that a successor begins at once. Raise RedisError."""
        state, self._state, self._is_synced = self._state, None, False
        if state is not None:
            searches = [shard.search for shard in state.shards.values() if shard.search]
            senders = {cell for search in searches for cell in search.senders}
            self._control.open_logins(map(logins.sender, senders - state.closed_until.keys()))
            self._control.release(LEASE, self._owner)

    def _step(self, now: float) -> list[Finding]:
        if not self._holds_lease():
            self._state, self._is_synced = None, False
            return []
        state = self._state = self._state or _GuardState()
        if not self._is_synced:
            state.shards = _GuardState().shards
            # A login that may not list users has never closed any.
            with nullcontext() if self._manages_users else suppress(ResponseError):
                self._open_all(besides=state.closed_until)
            if self._manages_users:
                self._is_named = self._control.own_user() != DEFAULT_USER
            self._is_synced = True
        elapsed = STEP_SECONDS if state.at is None else max(now - state.at, 0.1)
        state.at, state.steps = now, state.steps + 1
        self._open_due(state, now)
        load = self._control.measure(INBOX_QUEUES)
        found: list[Finding] = []
        for name, size in load.lists.items():
            found += self._limit(state, name, size, elapsed, now)
        if self._manages_users:
            found += self._limit_memory(state, load, now)
            is_crowded = load.connections > load.max_connections // 2
            if state.steps % LIST_STEPS == 1 or state.excess_steps or is_crowded:
                found += self._limit_connections(state, load, now)
        return found

    def _holds_lease(self) -> bool:
        """Renew the lease in one round trip if this is the guard; acquire it otherwise."""
        is_guard = self._state is not None
        if is_guard and self._control.renew(LEASE, self._owner, seconds=LEASE_SECONDS):
            return True
        return self._control.acquire(LEASE, self._owner, seconds=LEASE_SECONDS)

    def _open_all(self, *, besides: Container[str]) -> None:
        """Open what a former guard, a search, or a file of users from its time left closed."""
        users = self._control.users(logins.sender("")) | self._control.users(logins.receiver(""))
        self._control.open_logins(
            name
            for name, is_open in users.items()
            if not is_open and name.partition(".")[2] not in besides
        )

    def _open_due(self, state: _GuardState, now: float) -> None:
        searched = {name for name, shard in state.shards.items() if shard.search}
        due = [cell for cell, until in state.closed_until.items() if until <= now]
        for cell in due:
            del state.closed_until[cell]
        # A search opens the sender itself, in the next window in which the cell may send.
        senders = (logins.sender(cell) for cell in due if inbox_queue(cell) not in searched)
        if due:
            self._control.open_logins([*map(logins.receiver, due), *senders])

    def _limit(
        self, state: _GuardState, name: str, size: ListSize, elapsed: float, now: float
    ) -> list[Finding]:
        shard = state.shards[name]
        is_flood = shard.size is not None and _is_flood(shard.size, size, elapsed)
        shard.large_steps = shard.large_steps + 1 if _is_large(size, EMPTY) else 0
        shard.size = size
        found: list[Finding] = []
        if size.size_bytes > MAX_BYTES or size.messages > MAX_MESSAGES:
            found.append(self._trim(name, shard, size))
        if is_flood or found:
            shard.floods.append(now)
        if self._searches:
            before = shard.window_size
            # In a window, a slower growth is a flood, too: blocked senders do not hide it.
            is_slow_flood = _is_flood(before, size, STEP_SECONDS) or _is_large(size, before)
            is_flooded = is_flood or is_slow_flood or bool(found)
            found += self._search(state, name, shard, is_flooded, now)
        return found

    def _search(
        self, state: _GuardState, name: str, shard: _ShardState, is_flooded: bool, now: float
    ) -> list[Finding]:
        """Start or continue the search for the sender of a flood; close its logins if found."""
        search = shard.search
        is_first_step, shard.is_first_step = shard.is_first_step, False
        if search is None:
            is_flooded, is_over = False, _is_search_due(shard, now)
        else:
            if is_first_step and search.is_alone and shard.size is not None:
                shard.window_size, is_flooded = shard.size, False
            is_over = now >= shard.window_until
        if not (is_over or is_flooded):
            return []
        users = self._senders(name)
        senders = users.keys() - state.closed_until.keys()
        opened = {cell for cell, is_open in users.items() if is_open}
        if search is None:
            shard.watch_seconds = self._watch_seconds(shard, now)
            shard.watch_until = now + shard.watch_seconds
            result = start_search(senders)
        elif opened != search.allowed or senders != search.senders:
            # A login that was opened or closed meanwhile may falsify the result of the window.
            result = search.among(senders)
        else:
            if is_flooded:
                shard.watch_until = now + shard.watch_seconds
            result = search.after_window(is_flooded=is_flooded)
        if isinstance(result, FloodSearch) and now < shard.watch_until:
            shard.search = result
            shard.window_until = now + self._window_seconds - STEP_SECONDS / 2
            allowed: Set[str] = result.allowed
        else:
            allowed = shard.end_search(result, senders, now)
        self._control.open_logins(map(logins.sender, allowed - opened))
        self._control.close_logins(map(logins.sender, opened - allowed))
        # What a blocked sender added after the last measurement proves nothing in this window.
        shard.size = shard.window_size = self._control.measure([name]).lists[name]
        shard.is_first_step = True
        if isinstance(result, SearchResult) and result.sender is not None:
            return [self._close(state, result.sender, f"it floods {name}", now)]
        return []

    def _watch_seconds(self, shard: _ShardState, now: float) -> float:
        """Return after how many seconds without a flood the next search of a shard ends."""
        is_soon = now < shard.watch_until + LONGEST_WATCH_SECONDS
        longer = 2 * shard.watch_seconds if is_soon else 0.0
        return min(max(longer, WATCH_WINDOWS * self._window_seconds), LONGEST_WATCH_SECONDS)

    def _trim(self, name: str, shard: _ShardState, size: ListSize) -> DroppedMessages:
        """Drop the newest half until the rest is half of what a shard holds."""
        rest = size
        while rest.size_bytes > MAX_BYTES // 2 or rest.messages > MAX_MESSAGES // 2:
            if rest.messages <= 1:
                break
            self._control.keep_oldest(name, rest.messages // 2)
            rest = self._control.measure([name]).lists[name]
        shard.size = shard.window_size = rest
        return DroppedMessages(
            name, size.messages - rest.messages, size.size_bytes - rest.size_bytes
        )

    def _senders(self, shard: str) -> dict[str, bool]:
        """Return the cells of a shard, and whether each may log in."""
        prefix = logins.sender("")
        users = self._control.users(prefix).items()
        cells = {user.removeprefix(prefix): is_open for user, is_open in users}
        return {cell: cells[cell] for cell in cells if inbox_queue(cell) == shard}

    def _limit_memory(self, state: _GuardState, load: ServerLoad, now: float) -> list[Finding]:
        """Find the logins that use much memory, by ending their connections in turn.

        Before, end all connections without a login, whose responses may be unread.
        A list of connections does not show all of it, and contains their names, which may be long.
        """
        if load.other_bytes <= state.other_bytes + MAX_OTHER_BYTES:
            return []
        if self._is_named:
            self._control.end_connections([DEFAULT_USER])
            load = self._control.measure(INBOX_QUEUES)
            if load.other_bytes <= state.other_bytes + MAX_OTHER_BYTES:
                return []
        users = self._control.users(logins.sender("")) | self._control.users(logins.receiver(""))
        found: list[Finding] = []
        for user, size in self._control.free_memory_of(users).items():
            cell = user.partition(".")[2]
            if size > MAX_LOGIN_BYTES and cell not in state.closed_until:
                reason = f"its connections to Redis occupy {size >> 20} MiB"
                found.append(self._close(state, cell, reason, now))
        if not found:
            # The next search is due after the same growth: this one has disturbed all cells.
            state.other_bytes = load.other_bytes
        return found

    def _limit_connections(self, state: _GuardState, load: ServerLoad, now: float) -> list[Finding]:
        listed = self._control.connections()
        if self._is_named or load.connections > load.max_connections // 2:
            late = [one for one in listed if one.age_seconds >= LOGIN_SECONDS]
            self._control.end_connections_by_id(
                one.id for one in late if _is_without_login(one, is_named=self._is_named)
            )
        excess = _find_excess(listed)
        self._control.end_connections(excess)
        state.excess_steps = Counter({user: state.excess_steps[user] + 1 for user in excess})
        found: list[Finding] = []
        for user, reason in excess.items():
            cell = user.partition(".")[2]
            is_due = state.excess_steps[user] >= EXCESS_STEPS
            if is_due and cell not in state.closed_until:
                found.append(self._close(state, cell, reason, now))
        return found

    def _close(self, state: _GuardState, cell: str, reason: str, now: float) -> ClosedLogins:
        times = state.times_closed[cell]
        state.times_closed[cell] += 1
        duration = min(CLOSED_SECONDS << min(times, 10), LONGEST_CLOSED_SECONDS)
        state.closed_until[cell] = now + duration
        self._control.close_logins(_logins(cell))
        return ClosedLogins(cell, duration, reason)


def _logins(cell: str) -> tuple[str, str]:
    return logins.sender(cell), logins.receiver(cell)


def _is_flood(before: ListSize, now: ListSize, elapsed: float) -> bool:
    """Return whether a list grows as by a flood."""
    return (
        now.size_bytes - before.size_bytes > FLOOD_BYTES * elapsed
        or now.messages - before.messages > FLOOD_MESSAGES * elapsed
    )


def _is_large(now: ListSize, before: ListSize) -> bool:
    """Return whether a list is large, and not smaller than before."""
    return now.messages >= max(before.messages, LARGE_MESSAGES) or now.size_bytes >= max(
        before.size_bytes, LARGE_BYTES
    )


def _is_search_due(shard: _ShardState, now: float) -> bool:
    is_flooded = len(shard.floods) == FLOODED_STEPS and now - shard.floods[0] <= OBSERVED_SECONDS
    return (is_flooded or shard.large_steps >= LARGE_STEPS) and now >= shard.search_at


def _is_without_login(one: Connection, *, is_named: bool) -> bool:
    if is_named:
        return one.user == DEFAULT_USER
    return one.command in {"NULL", "auth", "hello"}


def _find_excess(listed: Iterable[Connection]) -> dict[str, str]:
    """Return the logins of cells with too many connections, or with too long commands."""
    counts: Counter[str] = Counter()
    arguments: Counter[str] = Counter()
    for one in listed:
        if one.user.startswith((logins.sender(""), logins.receiver(""))):
            counts[one.user] += 1
        if one.user.startswith(logins.receiver("")):
            arguments[one.user] += one.arguments_bytes
    found = {}
    for user, count in counts.items():
        if count > MAX_CONNECTIONS:
            found[user] = f"it has {count} connections to Redis"
        elif arguments[user] > MAX_ARGUMENTS_BYTES:
            found[user] = f"its commands to Redis have {arguments[user] >> 20} MiB"
    return found
