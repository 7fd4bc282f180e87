"""Alerts about the control plane itself: late ticks, gaps, silent cells, failing rules, repairs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controlplane.commands.state.apply import apply
from controlplane.domain.state.effects import ClearAlert, Effects, RaiseAlert
from controlplane.queries.ticks import TickFacts

LATE = "tick_late"
GAP = "control_plane_gap"
FAILED = "rule_failed"
REPAIRED = "repaired"
SILENCE = "cells_silent"
CONTRADICTION = "contradiction"
"""A job has a contradiction that cannot be repaired."""

LATE_SECONDS = 60.0
"""An idle placement tick records a run every 10 s; a process needs some seconds to restart."""

SILENT_SECONDS = 60.0
"""Longer than a lease: a single dead cell is LOST by then and has its own alert."""


@dataclass(frozen=True, slots=True)
class TickAlerts:
    """Raises and clears these alerts for one process, and caches which of them are closed.

    An alert that is cached as closed costs no statement. An unknown one may be open, raised by
    another process. Alerts of a dead process close by age.
    """

    # By kind and subject, whether the alert may be open; missing: not known.
    _open: dict[tuple[str, str], bool] = field(default_factory=dict)
    # Ticks that have never ended a run -> when this process first checked them.
    _awaited: dict[str, datetime] = field(default_factory=dict)

    def raise_alert(self, alert: RaiseAlert, *, now: datetime) -> None:
        """Raise the alert, or renew it if it is open."""
        self._open[alert.kind, alert.subject] = True
        apply(Effects(alerts=[alert]), now=now)

    def clear_alert(
        self, kind: str, subject: str, *, now: datetime, was_open: bool = False
    ) -> None:
        """Clear the alert unless it is cached as closed; with `was_open` in any case."""
        if was_open or self._open.get((kind, subject), True):
            apply(Effects(cleared=[ClearAlert(kind, subject)]), now=now)
            self._open[kind, subject] = False

    def watch_tick(self, name: str, tick: TickFacts, *, now: datetime) -> None:
        """Raise an alert while the tick has not ended a run for too long; clear it afterwards.

        For a tick without a run, the time begins when this process first checks it.
        """
        # A time in the future is from before the clock was set back, by an unknown amount.
        patience = timedelta(seconds=LATE_SECONDS)
        if abs(now - (tick.finished_at or self._awaited.setdefault(name, now))) <= patience:
            self.clear_alert(LATE, name, now=now)
            return
        text = f"the {name} tick has never been through"
        if tick.finished_at is not None:
            text = f"the {name} tick was last through at {tick.finished_at:%Y-%m-%d %H:%M:%S} UTC"
        self.raise_alert(RaiseAlert(LATE, name, text), now=now)

    def watch_cells(self, cells: int, last_message_at: datetime | None, *, now: datetime) -> None:
        """Raise an alert while none of the `cells` sends messages; clear it afterwards."""
        patience = timedelta(seconds=SILENT_SECONDS)
        if not cells or last_message_at is None or now - last_message_at <= patience:
            self.clear_alert(SILENCE, "cells", now=now)
            return
        since = f"{last_message_at:%Y-%m-%d %H:%M:%S} UTC"
        text = f"no message of any of {cells} cells came since {since}"
        self.raise_alert(RaiseAlert(SILENCE, "cells", text), now=now)

    def raise_gap(self, name: str, away_since: datetime | None, *, now: datetime) -> None:
        """Raise the alert of a tick that did not run, or (None) whose inbox is deaf."""
        why = (
            "the inbox has not brought back what was sent through it"
            if away_since is None
            else f"the {name} tick did not run since {away_since:%Y-%m-%d %H:%M:%S} UTC"
        )
        text = (
            f"{why}: cells are not declared lost, and nothing is deleted,"
            " until cells had time to send messages"
        )
        self.raise_alert(RaiseAlert(GAP, name, text), now=now)

    def raise_failure(self, rule: str, error: Exception, *, now: datetime) -> None:
        """Raise the alert of a rule that failed as a whole."""
        alert = RaiseAlert(FAILED, f"rule {rule}", repr(error)[:1000])
        self.raise_alert(alert, now=now)

    def clear_failure(self, rule: str, *, now: datetime) -> None:
        """Clear the alert of a rule that succeeded."""
        self.clear_alert(FAILED, f"rule {rule}", now=now)


def raise_repair(rule: str, done: Mapping[str, int], *, now: datetime) -> None:
    """Raise the alert that a rule repaired a violation of an invariant."""
    what = ", ".join(f"{name} {count}" for name, count in done.items() if count)
    alert = RaiseAlert(REPAIRED, repair_subject(rule), f"had to be repaired: {what}")
    apply(Effects(alerts=[alert]), now=now)


def clear_repair(rule: str, *, now: datetime) -> None:
    """Clear the alert of repairs after a full round without one."""
    apply(Effects(cleared=[ClearAlert(REPAIRED, repair_subject(rule))]), now=now)


def repair_subject(rule: str) -> str:
    """Return the subject of the alert about repairs of a rule."""
    return f"rule {rule}"
