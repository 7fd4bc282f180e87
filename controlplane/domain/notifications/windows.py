"""When a rule sends: windows that group events, and quiet hours in a time zone.

Grouping follows Alertmanager: the first message comes `group_wait` after the first event, and two
messages of a rule are at least `group_interval` apart.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum, auto
from zoneinfo import ZoneInfo

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A daily period of local time. `weekdays`: of its begin, Monday is 0.

    A period whose end is not after its begin ends on the next day. A local time that occurs twice
    is the first one; one that a change of the clock skips is as much later.
    """

    zone: str
    begin: time
    end: time
    weekdays: frozenset[int] = frozenset(range(7))

    def is_quiet(self, at: datetime) -> bool:
        """Return whether `at` is in a period: its begin belongs to it, its end does not."""
        return self.end_at(at) is not None

    def end_at(self, at: datetime) -> datetime | None:
        """Return the end of the period that `at` is in, or None."""
        zone = ZoneInfo(self.zone)
        today = at.astimezone(zone).date()
        for day in (today - _DAY, today):
            until = day if self.begin < self.end else day + _DAY
            end = self._instant(until, self.end, zone)
            if day.weekday() in self.weekdays and self._instant(day, self.begin, zone) <= at < end:
                return end
        return None

    def _instant(self, day: date, at: time, zone: ZoneInfo) -> datetime:
        # Compared in UTC: two datetimes of one zone are compared by their local times.
        return datetime.combine(day, at, zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a rule sends. `critical_passes`: also in quiet hours, for events that are critical."""

    group_wait: timedelta
    group_interval: timedelta
    quiet: QuietHours | None = None
    critical_passes: bool = True


@dataclass(frozen=True, slots=True)
class Pending:
    """When the first unsent event of a rule happened, and the first critical one."""

    first_at: datetime | None = None
    first_critical_at: datetime | None = None


class Window(Enum):
    """The events that a message reports."""

    ALL = auto()
    CRITICAL = auto()


def due_window(
    pending: Pending, last_at: datetime | None, timing: Timing, *, now: datetime
) -> Window | None:
    """Return which unsent events are reported now, or None. `last_at`: of the previous message."""
    is_quiet = timing.quiet is not None and timing.quiet.is_quiet(now)
    if is_quiet and not timing.critical_passes:
        return None
    first_at = pending.first_critical_at if is_quiet else pending.first_at
    if first_at is None or now < _ready_at(first_at, last_at, timing):
        return None
    return Window.CRITICAL if is_quiet else Window.ALL


def next_message_at(
    pending: Pending, last_at: datetime | None, timing: Timing, *, now: datetime
) -> datetime | None:
    """Return when the unsent events are reported, the earliest of them; None without events."""
    found = []
    if pending.first_at is not None:
        ready_at = max(now, _ready_at(pending.first_at, last_at, timing))
        found.append((timing.quiet and timing.quiet.end_at(ready_at)) or ready_at)
    if timing.critical_passes and pending.first_critical_at is not None:
        found.append(max(now, _ready_at(pending.first_critical_at, last_at, timing)))
    return min(found, default=None)


def _ready_at(first_at: datetime, last_at: datetime | None, timing: Timing) -> datetime:
    """Return when an event may be reported, quiet hours aside."""
    waited = first_at + timing.group_wait
    return waited if last_at is None else max(waited, last_at + timing.group_interval)
