"""What the ticks tell operators of themselves: late, away, deaf, failing, repairing."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from controlplane.commands.state.apply import clear_alerts, raise_alerts
from controlplane.domain.state.effects import RaiseAlert
from controlplane.queries.ticks import TickFacts

LATE = "tick_late"
GAP = "control_plane_gap"
FAILED = "rule_failed"
REPAIRED = "repaired"
SILENCE = "cells_silent"
CONTRADICTION = "contradiction"
"""About a job in which something cannot be right, and that nobody can put right."""

LATE_SECONDS = 60.0
"""An idle placement notes itself every 10 s; a restarted process needs some seconds to be back."""

SILENT_SECONDS = 60.0
"""Longer than a lease: one cell that died alone is lost by then, and has an alert of its own."""

# Rules that failed when this process last ran them, and ticks that it found late or deaf: who is
# fine again costs no statement. What another process raised, or one that died, closes by its age.
_failing: dict[str, bool] = {}
_late: dict[str, bool] = {}
_deaf: dict[str, bool] = {}
_silent: dict[str, bool] = {}
# Ticks that were never through, by when this process first found them so.
_awaited: dict[str, datetime] = {}


def forget() -> None:
    """As a process that has just begun, to which the next look is its first."""
    _failing.clear()
    _late.clear()
    _deaf.clear()
    _silent.clear()
    _awaited.clear()


def watch_tick(name: str, tick: TickFacts, *, now: datetime) -> None:
    """Alert if the tick has not been through for too long; clear that once it has.

    One that never was has as long from when this process first looks.
    """
    # Later than now: the clock was put back, and nobody knows how long ago that was.
    patience = timedelta(seconds=LATE_SECONDS)
    late = abs(now - (tick.finished_at or _awaited.setdefault(name, now))) > patience
    if late:
        text = f"the {name} tick has never been through"
        if tick.finished_at is not None:
            text = f"the {name} tick was last through at {tick.finished_at:%Y-%m-%d %H:%M:%S} UTC"
        raise_alerts([RaiseAlert(LATE, name, text)], now=now)
    elif _late.get(name, True):
        clear_alerts(LATE, name, now=now)
    _late[name] = late


def watch_cells(cells: int, heard_at: datetime | None, *, now: datetime) -> None:
    """Alert if no message of any of the `cells` came for too long; clear that once one has."""
    is_silent = bool(cells and heard_at and now - heard_at > timedelta(seconds=SILENT_SECONDS))
    if is_silent and heard_at is not None:
        text = f"no message of any of {cells} cells came since {heard_at:%Y-%m-%d %H:%M:%S} UTC"
        raise_alerts([RaiseAlert(SILENCE, "cells", text)], now=now)
    elif _silent.get(SILENCE, True):
        clear_alerts(SILENCE, "cells", now=now)
    _silent[SILENCE] = is_silent


def tell_gap(name: str, away_since: datetime | None, *, now: datetime) -> None:
    """The tick was away, or cannot hear (no instant): what needs that is held back for a lease."""
    _deaf[name] = True
    why = (
        "the inbox has not brought back what was sent through it"
        if away_since is None
        else f"the {name} tick did not run since {away_since:%Y-%m-%d %H:%M:%S} UTC"
    )
    text = f"{why}: no cell is lost and nothing deleted before cells had time to be heard"
    raise_alerts([RaiseAlert(GAP, name, text)], now=now)


def tell_hearing(name: str, *, now: datetime, was_held: bool) -> None:
    """The tick holds nothing back. `was_held`: until now it did, as its last run noted."""
    if was_held or _deaf.get(name, True):
        clear_alerts(GAP, name, now=now)
        _deaf[name] = False


def tell_failure(rule: str, error: Exception, *, now: datetime) -> None:
    """A rule of convergence failed as a whole; it is tried again with each tick."""
    _failing[rule] = True
    raise_alerts([RaiseAlert(FAILED, f"rule {rule}", repr(error)[:1000])], now=now)


def tell_recovery(rule: str, *, now: datetime) -> None:
    """The rule ran through."""
    if _failing.get(rule, True):
        clear_alerts(FAILED, f"rule {rule}", now=now)
        _failing[rule] = False


def tell_repair(rule: str, done: Mapping[str, int], *, now: datetime) -> None:
    """Something had to be put right that should never have been wrong."""
    what = ", ".join(f"{name} {count}" for name, count in done.items() if count)
    raise_alerts([RaiseAlert(REPAIRED, f"rule {rule}", f"had to be repaired: {what}")], now=now)


def tell_sound(rule: str, *, now: datetime) -> None:
    """The rule has looked at all there is, and nothing had to be put right."""
    clear_alerts(REPAIRED, f"rule {rule}", now=now)
