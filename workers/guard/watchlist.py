"""What cell and guard tell each other: whom to watch until when, and what became of it.

Instants are seconds since boot, which both read from the same clock; of another boot of the machine
they say only that they are past.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract import fields
from workers.attempt.events import Permit

# Of the lease is kept for the kill itself, and for the pace of whoever carries it out.
MARGIN = 0.05
# Of the lease may an attempt use for its end: the rest is for its work.
GRACE = 1 / 3
# A guard that has said nothing for so long is taken for dead or stopped: it says something each
# second while it has anybody to watch.
SILENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ExclusiveAttempt:
    """One exclusive attempt. `deadline`: when the lease of its cell is over."""

    deadline: float
    lease_seconds: float
    grace_seconds: float
    stop_signal: str = "TERM"

    @property
    def kills_at(self) -> float:
        """From when SIGKILL is sent."""
        return self.deadline - self.lease_seconds * MARGIN

    @property
    def asks_at(self) -> float:
        """From when its end is asked for; the grace passes before the kill."""
        longest = self.lease_seconds * GRACE
        return self.kills_at - min(max(self.grace_seconds, 0.0), longest)


@dataclass(frozen=True, slots=True)
class Watchlist:
    """The exclusive attempts of a cell, by uid. `number` grows with each list; 0: none yet.

    `is_last`: the cell ends, and its guard need not wait to see it gone.
    """

    number: int = 0
    boot_id: str = ""
    attempts: Mapping[str, ExclusiveAttempt] = field(default_factory=dict)
    is_last: bool = False

    def body(self) -> dict[str, Any]:
        """As JSON."""
        attempts = {
            uid: [item.deadline, item.lease_seconds, item.grace_seconds, item.stop_signal]
            for uid, item in self.attempts.items()
        }
        return {
            "number": self.number,
            "boot": self.boot_id,
            "attempts": attempts,
            "last": self.is_last,
        }


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """What the guard says: up to which list it has read, and at what instant it said so.

    `struck`: whom it told to end, or will before anything else, and from when it kills. `over`: of
    whom nothing runs, or will.
    """

    number: int = 0
    boot_id: str = ""
    at: float = 0.0
    struck: Mapping[str, float] = field(default_factory=dict)
    over: frozenset[str] = frozenset()

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "number": self.number,
            "boot": self.boot_id,
            "at": self.at,
            "struck": dict(self.struck),
            "over": sorted(self.over),
        }


def read_watchlist(body: Mapping[str, Any]) -> Watchlist:
    """A list as it was written. Raises Malformed."""
    attempts = {}
    for uid, item in fields.mapping(body, "attempts").items():
        match item:
            case [float() | int() as deadline, float() | int() as lease, grace, str() as stop] if (
                isinstance(grace, float | int)
            ):
                attempts[uid] = ExclusiveAttempt(deadline, lease, grace, stop)
            case _:
                raise fields.MalformedMessage(f"attempt {uid} is not as it should be")
    return Watchlist(
        fields.whole(body, "number"),
        fields.text(body, "boot"),
        attempts,
        fields.flag(body, "last", False),
    )


def read_word(body: Mapping[str, Any]) -> GuardStatus:
    """A word as it was written. Raises Malformed."""
    struck = {uid: float(at) for uid, at in fields.mapping(body, "struck").items()}
    over = frozenset(fields.listing(body, "over", str))
    return GuardStatus(
        fields.whole(body, "number"),
        fields.text(body, "boot"),
        fields.number(body, "at"),
        struck,
        over,
    )


def permit(watchlist: Watchlist, word: GuardStatus, uid: str, now: float) -> Permit:
    """Whether the container of an attempt may be created, or started, at `now`.

    Not before the guard has said that it watches it: a start that nobody would end is the one that
    must not happen.
    """
    item = watchlist.attempts.get(uid)
    if item is None or now >= item.asks_at:
        return Permit.NEVER
    if word.boot_id != watchlist.boot_id or word.number < watchlist.number:
        return Permit.NOT_YET
    if uid in word.struck:
        return Permit.NEVER
    return Permit.YES if now - word.at < SILENCE_SECONDS else Permit.NOT_YET
