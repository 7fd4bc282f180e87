"""The guard's decisions: single-threaded, with time as an argument, so that simulations run them.

A fenced attempt is reported before any signal is sent. So its end is never taken for the program's
own, even if guard or cell are killed meanwhile. Fencing is final, also if the lease is renewed
during the grace period.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from workers.guard.watchlist import ExclusiveAttempt, GuardStatus, Watchlist

# Between two signals to an attempt that has not ended.
AGAIN_SECONDS = 0.5
# For an engine's first answer about a container.
FIRST_INSPECTION_SECONDS = 0.5
# Interval of the status that shows that the guard is alive.
STATUS_SECONDS = 1.0


class ContainerFacts(StrEnum):
    """The known state of a container."""

    NOTHING = "nothing"  # unknown: the engine was not called or has not answered yet
    ABSENT = "absent"  # it does not exist, but may be created
    THERE = "there"  # it exists and may run, now or later
    OVER = "over"  # it has ended


class EngineControl(Protocol):
    """The guard's operations on containers. None blocks: results are read later by `known`."""

    def inspect(self, uid: str, now: float) -> None:
        """Request the state of the container, at most once per interval."""

    def known(self, uid: str) -> ContainerFacts:
        """Return the last known state."""

    def stop(self, uid: str, signal_name: str) -> None:
        """Send the stop signal, once even if called repeatedly."""

    def kill(self, uid: str) -> None:
        """Kill the container, or remove it if it was never started. Repeatable."""

    def forget(self, uid: str) -> None:
        """Stop watching the container."""


class Guard:
    """Watches the attempts of the last watchlist. `publish` stores the status for the cell."""

    def __init__(
        self,
        engine: EngineControl,
        publish: Callable[[GuardStatus], None],
        *,
        boot_id: str,
        status: GuardStatus | None = None,
    ) -> None:
        """Create a guard; `status` is the last one of an earlier guard of this cell."""
        self._engine = engine
        self._publish_status = publish
        self._boot_id = boot_id
        earlier = status if status is not None and status.boot_id == boot_id else GuardStatus()
        self._fenced = dict(earlier.fenced)
        self._status = GuardStatus()
        self._since: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        self._list = Watchlist()

    def tick(self, watchlist: Watchlist, now: float) -> None:
        """Fence, stop and kill attempts that are due at `now`."""
        self._list = watchlist
        self._take_over(now)
        for uid, item in watchlist.attempts.items():
            if uid not in self._fenced and self._is_due(uid, item, now):
                self._fenced[uid] = item.kills_at if self._is_same_boot else now
        self._publish(now)
        for uid, item in watchlist.attempts.items():
            if uid not in self._fenced:
                self._engine.inspect(uid, now)
            elif not self._has_ended(uid) and now >= self._retry_at.get(uid, 0.0):
                self._end(uid, item, now)

    @property
    def is_done(self) -> bool:
        """Whether no watched attempt runs, or can start without a cell."""
        return all(self._is_over(uid) for uid in self._list.attempts)

    def wakes_at(self, now: float) -> float:
        """Return when `tick` must be called next, unless the watchlist changes before."""
        times = [self._status.at + STATUS_SECONDS] if self._list.attempts else []
        for uid, item in self._list.attempts.items():
            if self._has_ended(uid):
                continue
            if uid in self._fenced:
                times.append(self._retry_at.get(uid, now))
            else:
                times.append(self._is_due_at(uid, item))
        return min(times, default=float("inf"))

    @property
    def _is_same_boot(self) -> bool:
        return self._list.boot_id == self._boot_id

    def _is_due(self, uid: str, item: ExclusiveAttempt, now: float) -> bool:
        return now >= self._is_due_at(uid, item) and not self._has_ended(uid)

    def _is_due_at(self, uid: str, item: ExclusiveAttempt) -> float:
        at = item.stops_at if self._is_same_boot else self._since[uid]
        # A new guard inspects first, so that it does not fence an attempt that has ended by itself.
        if self._engine.known(uid) is ContainerFacts.NOTHING:
            at = max(at, self._since[uid] + FIRST_INSPECTION_SECONDS)
        return at

    def _has_ended(self, uid: str) -> bool:
        return self._engine.known(uid) is ContainerFacts.OVER

    def _is_over(self, uid: str) -> bool:
        known = self._engine.known(uid)
        return known is ContainerFacts.OVER or (
            known is ContainerFacts.ABSENT and uid in self._fenced
        )

    def _take_over(self, now: float) -> None:
        watched = self._list.attempts
        for uid in self._since.keys() - watched.keys():
            self._engine.forget(uid)
            self._retry_at.pop(uid, None)
        self._since = {uid: self._since.get(uid, now) for uid in watched}
        self._fenced = {uid: at for uid, at in self._fenced.items() if uid in watched}

    def _publish(self, now: float) -> None:
        over = frozenset(uid for uid in self._list.attempts if self._is_over(uid))
        status = GuardStatus(self._list.number, self._boot_id, now, dict(self._fenced), over)
        published = self._status
        is_new = (status.number, status.fenced, status.over) != (
            published.number,
            published.fenced,
            published.over,
        )
        if (
            is_new
            or not published.boot_id
            or (self._list.attempts and now >= published.at + STATUS_SECONDS)
        ):
            self._status = status
            self._publish_status(status)

    def _end(self, uid: str, item: ExclusiveAttempt, now: float) -> None:
        kills_at = self._fenced[uid]
        if now >= kills_at:
            self._engine.kill(uid)
        else:
            self._engine.stop(uid, item.stop_signal)
        retry_at = now + AGAIN_SECONDS
        self._retry_at[uid] = retry_at if now >= kills_at else min(retry_at, kills_at)
