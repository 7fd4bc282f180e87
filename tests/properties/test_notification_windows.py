"""The windowing rule against a plain restatement: walk through every minute of some days."""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.notifications.windows import (
    Pending,
    QuietHours,
    Timing,
    Window,
    due_window,
)

MINUTE = timedelta(minutes=1)
# The nights before these days have a change of the clock in Berlin.
STARTS = (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC))
BERLIN = "Europe/Berlin"
# Local times that occur once on each day, so that the restatement can read a clock on the wall.
TIMES = st.sampled_from([time(0), time(0, 30), time(6), time(12, 15), time(22), time(23, 59)])
EVENTS = st.lists(st.tuples(st.integers(0, 2_000), st.booleans()), max_size=12)


def plainly_quiet(at: datetime, begin: time, end: time, weekdays: frozenset[int]) -> bool:
    """Read the clock on the wall, and the calendar."""
    wall = at.astimezone(ZoneInfo(BERLIN))
    today, yesterday = wall.weekday(), (wall.weekday() - 1) % 7
    if begin < end:
        return today in weekdays and begin <= wall.time() < end
    return (today in weekdays and wall.time() >= begin) or (
        yesterday in weekdays and wall.time() < end
    )


@given(
    start=st.sampled_from(STARTS),
    events=EVENTS,
    begin=TIMES,
    end=TIMES,
    weekdays=st.frozensets(st.integers(0, 6)),
    waits=st.tuples(st.integers(0, 60), st.integers(1, 300)),
    passes=st.booleans(),
)
def test_each_event_is_sent_once_in_the_first_permitted_minute(
    start: datetime,
    events: list[tuple[int, bool]],
    begin: time,
    end: time,
    weekdays: frozenset[int],
    waits: tuple[int, int],
    passes: bool,
) -> None:
    if begin == end:
        return
    timing = Timing(
        waits[0] * MINUTE,
        waits[1] * MINUTE,
        QuietHours(BERLIN, begin, end, weekdays),
        critical_passes=passes,
    )
    unsent: list[tuple[int, bool]] = []
    last: int | None = None
    for minute in range(2_100):
        unsent += [event for event in events if event[0] == minute]
        now = start + minute * MINUTE
        is_quiet = plainly_quiet(now, begin, end, weekdays)
        eligible = [event for event in unsent if not is_quiet or (event[1] and passes)]
        is_due = bool(eligible) and minute - min(eligible)[0] >= waits[0]
        is_due &= last is None or minute - last >= waits[1]
        expected = (Window.CRITICAL if is_quiet else Window.ALL) if is_due else None
        critical = [at for at, is_critical in unsent if is_critical]
        pending = Pending(
            start + min(unsent)[0] * MINUTE if unsent else None,
            start + min(critical) * MINUTE if critical else None,
        )
        last_at = None if last is None else start + last * MINUTE
        assert due_window(pending, last_at, timing, now=now) is expected
        if is_due:
            unsent = [event for event in unsent if event not in eligible]
            last = minute
