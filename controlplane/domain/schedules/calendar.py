"""Instants of a cron expression in a time zone, with the rules of Debian's cron for clock changes.

An expression with a fixed hour and minute fires once a day: at the first of two equal local times,
and, for a local time that a change skips, right after it. Others follow the elapsed time.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from controlplane.domain.errors import CellrunError

ALIASES = MappingProxyType(
    {
        "@hourly": "0 * * * *",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@weekly": "0 0 * * 0",
        "@monthly": "0 0 1 * *",
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
    }
)
MAX_CRON = 100
MAX_ZONE = 63

_FIELDS = 5
# Periods that are searched for the last instants: the shortest that has enough of them.
_PERIODS = tuple(timedelta(days=days) for days in (1 / 24, 1, 31, 366, 3_660))


class BadCalendar(CellrunError):
    """A cron expression or a time zone is invalid."""


class Calendar:
    """The instants of one expression, in UTC."""

    def __init__(self, cron: str, zone: str) -> None:
        """Read the expression. Raise BadCalendar."""
        self._zone = _read_zone(zone)
        self._cron = ALIASES.get(cron.strip().lower(), cron)
        if len(self._cron.split()) != _FIELDS:
            known = ", ".join(ALIASES)
            raise BadCalendar(
                f"must have five fields (minute, hour, day, month, day of the week), or be {known}"
            )
        try:
            CronSim(self._cron, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            raise BadCalendar(f"is no cron expression: {str(error).lower()}") from None

    def next_after(self, at: datetime) -> datetime | None:
        """Return the first instant after `at`; None if there is none in the next 50 years."""
        return next(self.after(at), None)

    def after(self, at: datetime) -> Iterator[datetime]:
        """Yield the instants after `at`, in order."""
        # In the hour that a clock change repeats, the library counts from its first pass.
        for local in _LocalCron(self._cron, at.astimezone(self._zone)):
            found = local.astimezone(UTC)
            if found > at:
                yield found

    def last_until(self, until: datetime, *, since: datetime, most: int) -> list[datetime]:
        """Return the last instants from `since` to `until`, in order, at most `most`."""
        for period in _PERIODS:
            begin = max(since, until - period)
            found = self._between(begin, until)
            if len(found) >= most or begin == since:
                return found[-most:]
        return found[-most:]

    def _between(self, begin: datetime, end: datetime) -> list[datetime]:
        found = []
        for instant in self.after(begin - timedelta(seconds=1)):
            if instant > end:
                break
            found.append(instant)
        return found


class _LocalCron(CronSim):
    """Corrects the library where it moves by hours and minutes through a change of clocks.

    It loses instants after a change of half an hour, and names those of a midnight that is skipped.
    """

    def advance_month(self) -> None:
        super().advance_month()
        self._leave_gap()

    def advance_day(self) -> bool:
        is_moved = super().advance_day()
        self._leave_gap()
        return is_moved

    def advance_hour(self) -> bool:
        if self.dt.hour in self.hours:
            return False
        while self.dt.hour not in self.hours:
            # To the next full hour, which is not always an hour after the last one.
            self.tick(seconds=3600 - 60 * self.dt.minute - self.dt.second)
            if self.dt.hour == 0:
                break
        return True

    def advance_minute(self) -> bool:
        before = self.dt.replace(second=0)
        is_moved = super().advance_minute()
        if self.dt.utcoffset() != before.utcoffset():
            # The library may have passed a minute that the change repeats.
            self.dt = before
            while self.dt.minute not in self.minutes:
                self.tick(seconds=60)
                if self.dt.minute == 0:
                    break
        return is_moved

    def _leave_gap(self) -> None:
        if self.dt.tzinfo is not None:
            self.dt = self.dt.astimezone(UTC).astimezone(self.dt.tzinfo)


def _read_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise BadCalendar(f"{name} is not a time zone, such as Europe/Berlin") from None


@lru_cache(maxsize=1_024)
def calendar_of(cron: str, zone: str) -> Calendar:
    """Return the calendar, which is parsed once for many schedules. Raise BadCalendar."""
    return Calendar(cron, zone)
