"""Which minutes a cron expression names, by docs/schedules.md: nothing of the product is used.

Also the changes of clocks near which some simulations with schedules begin.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from types import MappingProxyType
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
Calendar = tuple[str, str]
"""A cron expression and a zone."""


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """The local minutes that fire. `hours`, `weekday`: None for all.

    `is_fixed`: hour and minute are fixed, so that a skipped local time fires right after the
    change, and a repeated one once. Others follow the elapsed time.
    """

    zone: str
    minutes: frozenset[int]
    hours: frozenset[int] | None = None
    weekday: int | None = None
    is_fixed: bool = False

    def between(self, since: datetime, until: datetime) -> list[datetime]:
        """Return the instants after `since`, and until `until`."""
        at = since.astimezone(UTC).replace(second=0, microsecond=0)
        found = []
        while at <= until:
            if at > since and self._fires(at):
                found.append(at)
            at += MINUTE
        return found

    def _fires(self, at: datetime) -> bool:
        local = at.astimezone(ZoneInfo(self.zone))
        if not self.is_fixed:
            return self._names(local)
        if local.fold:
            return False  # its first pass has fired
        return self._names(local) or any(map(self._names, self._skipped_before(at)))

    def _names(self, local: datetime) -> bool:
        is_hour = self.hours is None or local.hour in self.hours
        is_day = self.weekday in (None, local.isoweekday())
        return is_hour and is_day and local.minute in self.minutes

    def _skipped_before(self, at: datetime) -> Iterator[datetime]:
        """Yield the local minutes that a change at this very instant skips."""
        zone = ZoneInfo(self.zone)
        local = at.astimezone(zone).replace(tzinfo=None)
        skipped = (at - MINUTE).astimezone(zone).replace(tzinfo=None) + MINUTE
        while skipped < local:
            yield skipped
            skipped += MINUTE


_ALL = frozenset(range(60))
_EVEN = frozenset(range(0, 60, 2))
_ODD = frozenset({53, 55, 57, 59, 0})
# Most simulations begin on a Sunday, 2025-06-15 15:06:40 UTC, which is Monday on Kiritimati.
USUAL: Mapping[Calendar, LocalTimes] = MappingProxyType(
    {
        ("* * * * *", "UTC"): LocalTimes("UTC", _ALL),
        ("* * * * SUN", "Asia/Kolkata"): LocalTimes("Asia/Kolkata", _ALL, weekday=7),
        ("* * * * MON", "Pacific/Kiritimati"): LocalTimes("Pacific/Kiritimati", _ALL, weekday=1),
        ("*/2 * * * *", "Europe/Berlin"): LocalTimes("Europe/Berlin", _EVEN),
        ("53-59/2,0 * 15 JUN *", "Asia/Kathmandu"): LocalTimes("Asia/Kathmandu", _ODD),
    }
)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A change of clocks at `at`, forward or back by so many minutes, in the night to Sunday."""

    zone: str
    at: datetime
    minutes: int

    def moments(self) -> list[datetime]:
        """Return the change itself, and begin and end of the local times that it repeats."""
        if self.minutes > 0:
            return [self.at]
        span = timedelta(minutes=-self.minutes)
        return [self.at, self.at, self.at - span, self.at + span]


CHANGES = (
    ClockChange("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC), 60),
    ClockChange("Europe/Berlin", datetime(2025, 10, 26, 1, tzinfo=UTC), -60),
    ClockChange("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC), 60),
    ClockChange("America/New_York", datetime(2025, 11, 2, 6, tzinfo=UTC), -60),
    ClockChange("Australia/Lord_Howe", datetime(2025, 10, 4, 15, 30, tzinfo=UTC), 30),
    ClockChange("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC), -30),
    ClockChange("America/Santiago", datetime(2025, 9, 7, 4, tzinfo=UTC), 60),
    ClockChange("America/Santiago", datetime(2026, 4, 5, 3, tzinfo=UTC), -60),
)
BEGIN = 1_750_000_000.0
"""When simulations without such a change begin, in seconds since 1970."""


def choose_change(seed: int) -> tuple[float, ClockChange | None]:
    """Return when a simulation with schedules begins, and the change that is near."""
    rng = Random(f"clocks of {seed}")
    if rng.random() < 0.3:
        return BEGIN, None
    change = rng.choice(CHANGES)
    return rng.choice(change.moments()).timestamp() - rng.uniform(30.0, 250.0), change


def draw_calendars(
    rng: Random, begin: float, change: ClockChange | None
) -> Mapping[Calendar, LocalTimes]:
    """Return calendars with instants in the minutes after `begin`."""
    if change is None:
        return USUAL
    zone = change.zone
    hour = _draw_hour(rng, begin, change)
    minutes = frozenset(rng.sample(range(60), 24))
    one = rng.randrange(60)
    listed = ",".join(map(str, sorted(minutes)))
    both = frozenset({hour, (hour + 1) % 24})
    hours = ",".join(map(str, sorted(both)))
    return {
        ("* * * * *", "UTC"): LocalTimes("UTC", _ALL),
        ("*/2 * * * *", "Asia/Kolkata"): LocalTimes("Asia/Kolkata", _EVEN),
        ("* * * * *", zone): LocalTimes(zone, _ALL),
        (f"*/2 {hour} * * SUN", zone): LocalTimes(zone, _EVEN, frozenset({hour}), 7),
        (f"{one} * * * *", zone): LocalTimes(zone, frozenset({one})),
        (f"{listed} * * * *", zone): LocalTimes(zone, minutes),
        (f"0-59 {hour} * * *", zone): LocalTimes(zone, _ALL, frozenset({hour}), is_fixed=True),
        (f"{listed} {hours} * * *", zone): LocalTimes(zone, minutes, both, is_fixed=True),
        (f"{listed} {hours} * * SUN", zone): LocalTimes(zone, minutes, both, 7, is_fixed=True),
    }


def _draw_hour(rng: Random, begin: float, change: ClockChange) -> int:
    """Return an hour of the local times that pass, or are skipped, in the first minutes."""
    zone = ZoneInfo(change.zone)
    passed = [
        datetime.fromtimestamp(begin + 60.0 * number, UTC).astimezone(zone) for number in range(6)
    ]
    hours = {local.hour for local in passed}
    if change.minutes > 0:
        last = (change.at - MINUTE).astimezone(zone).hour
        hours.add((last + 1) % 24)  # that of the skipped times
    return rng.choice(sorted(hours))
