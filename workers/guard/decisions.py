"""The guard's decisions, single-threaded, with time as an argument: a simulation runs the same
code.

A fenced attempt is reported before any signal is sent, so that its end is never taken for the
program's own, whichever process of guard or cell is killed meanwhile. Fencing is final: a lease
renewed during the grace period comes too late.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from workers.guard.watchlist import ExclusiveAttempt, GuardStatus, Watchlist

# Until what had no effect is done again.
AGAIN_SECONDS = 0.5
# For an engine's first answer about a container.
FIRST_INSPECTION_SECONDS = 0.5
# How often it reports that it is alive.
STATUS_SECONDS = 1.0


class ContainerFacts(StrEnum):
    """What is known of a container."""

    NOTHING = "nothing"  # no request was sent yet, or the engine has not answered
    ABSENT = "absent"  # there is none, but one may come
    THERE = "there"  # it may run, now or later
    OVER = "over"  # it has ended


class EngineControl(Protocol):
    """What the guard does without waiting: it sends a request and reads the result later."""

    def inspect(self, uid: str, now: float) -> None:
        """Find out about the container, now and then."""

    def known(self, uid: str) -> ContainerFacts:
        """What is known of it now."""

    def stop(self, uid: str, signal_name: str) -> None:
        """Send the stop signal, once however often this is called."""

    def kill(self, uid: str) -> None:
        """Kill it, or remove it if it was never started. Repeatable."""

    def forget(self, uid: str) -> None:
        """Stop watching it."""


class Guard:
    """Watches the attempts of the last list. `publish` stores its status for the cell."""

    def __init__(
        self,
        engine: EngineControl,
        publish: Callable[[GuardStatus], None],
        *,
        boot_id: str,
        status: GuardStatus | None = None,
    ) -> None:
        """`status`: the last one of an earlier guard of this cell."""
        self._engine = engine
        self._publish_status = publish
        self._boot_id = boot_id
        earlier = status if status is not None and status.boot_id == boot_id else GuardStatus()
        self._fenced = dict(earlier.fenced)
        self._status = GuardStatus()
        self._since: dict[str, float] = {}
        self._again_at: dict[str, float] = {}
        self._list = Watchlist()

    def tick(self, watchlist: Watchlist, now: float) -> None:
        """Do what is due at `now`."""
        self._list = watchlist
        self._take_over(now)
        for uid, item in watchlist.attempts.items():
            if uid not in self._fenced and self._is_due(uid, item, now):
                self._fenced[uid] = item.kills_at if self._is_of_this_boot else now
        self._publish(now)
        for uid, item in watchlist.attempts.items():
            if uid not in self._fenced:
                self._engine.inspect(uid, now)
            elif not self._has_ended(uid) and now >= self._again_at.get(uid, 0.0):
                self._end(uid, item, now)

    @property
    def is_done(self) -> bool:
        """Whether nothing of what it watches runs, or will if no cell lives."""
        return all(self._is_over(uid) for uid in self._list.attempts)

    def wakes_at(self, now: float) -> float:
        """When `tick` has something to do at the latest, if the list stays as it is."""
        moments = [self._status.at + STATUS_SECONDS] if self._list.attempts else []
        for uid, item in self._list.attempts.items():
            if self._has_ended(uid):
                continue
            if uid in self._fenced:
                moments.append(self._again_at.get(uid, now))
            else:
                moments.append(self._is_due_at(uid, item))
        return min(moments, default=float("inf"))

    @property
    def _is_of_this_boot(self) -> bool:
        return self._list.boot_id == self._boot_id

    def _is_due(self, uid: str, item: ExclusiveAttempt, now: float) -> bool:
        return now >= self._is_due_at(uid, item) and not self._has_ended(uid)

    def _is_due_at(self, uid: str, item: ExclusiveAttempt) -> float:
        at = item.stops_at if self._is_of_this_boot else self._since[uid]
        # A new guard inspects first: an attempt that has ended by itself is not fenced.
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
            self._again_at.pop(uid, None)
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
        again = now + AGAIN_SECONDS
        self._again_at[uid] = again if now >= kills_at else min(again, kills_at)
