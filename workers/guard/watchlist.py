"""The messages between cell and guard: attempts to watch with deadlines, and the guard's status.

Times are in seconds since boot, which both read from the same clock; times of another boot count as
past.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from controlplane.contract.codec import Document, Key
from workers.attempt.events import Permit

# Share of the lease reserved for the kill itself and its delays.
MARGIN = 0.05
# Maximum share of the lease for the grace period of an attempt.
GRACE = 1 / 3
# After this time without a status, a guard counts as stopped: it writes one each second while it
# has attempts to watch.
SILENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ExclusiveAttempt(Document):
    """One exclusive attempt. `deadline`: when the lease of its cell expires."""

    AS_LIST = True

    deadline: float
    lease_seconds: float
    grace_seconds: float
    stop_signal: str = "TERM"

    @property
    def kills_at(self) -> float:
        """The time from which SIGKILL is sent."""
        return self.deadline - self.lease_seconds * MARGIN

    @property
    def stops_at(self) -> float:
        """The time of the stop signal: the grace period before the kill."""
        longest = self.lease_seconds * GRACE
        return self.kills_at - min(max(self.grace_seconds, 0.0), longest)


@dataclass(frozen=True, slots=True)
class Watchlist(Document):
    """The exclusive attempts of a cell, by uid. `number` grows with each list; 0: none yet.

    `is_last`: the cell is ending, and the guard need not wait for its end.
    """

    number: int = 0
    boot_id: Annotated[str, Key("boot")] = ""
    attempts: Mapping[str, ExclusiveAttempt] = field(default_factory=dict)
    is_last: Annotated[bool, Key("last")] = False


@dataclass(frozen=True, slots=True)
class GuardStatus(Document):
    """The guard's status: the number of the last watchlist that it read, and when it wrote this.

    `fenced`: attempts that the guard fences, with the time of the kill. `over`: attempts of which
    nothing runs or will run.
    """

    number: int = 0
    boot_id: Annotated[str, Key("boot")] = ""
    at: float = 0.0
    fenced: Mapping[str, float] = field(default_factory=dict)
    over: frozenset[str] = frozenset()


def permit(watchlist: Watchlist, status: GuardStatus, uid: str, now: float) -> Permit:
    """Return whether the container of an attempt may be created, or started, at `now`.

    NOT_YET until the guard has confirmed that it watches the attempt: otherwise a started container
    could outlive its lease.
    """
    item = watchlist.attempts.get(uid)
    if item is None or now >= item.stops_at:
        return Permit.NEVER
    if status.boot_id != watchlist.boot_id or status.number < watchlist.number:
        return Permit.NOT_YET
    if uid in status.fenced:
        return Permit.NEVER
    return Permit.YES if now - status.at < SILENCE_SECONDS else Permit.NOT_YET
