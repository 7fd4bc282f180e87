"""Quiet hours in local time, also when the clock changes."""

from datetime import UTC, datetime, time, timedelta

import pytest

from controlplane.domain.notifications.windows import (
    Pending,
    QuietHours,
    Timing,
    Window,
    due_window,
)

NIGHT = QuietHours("Europe/Berlin", time(22), time(7))
TIMING = Timing(timedelta(seconds=30), timedelta(minutes=5), NIGHT)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "is_quiet"),
    [
        ("2026-03-28T20:59:59", False),  # 21:59:59 in winter time
        ("2026-03-28T21:00:00", True),
        ("2026-03-29T04:59:59", True),  # 06:59:59 in summer time, after eight hours
        ("2026-03-29T05:00:00", False),
        ("2026-03-29T20:00:00", True),  # 22:00 in summer time
        ("2026-10-24T20:00:00", True),
        ("2026-10-25T05:59:59", True),  # 06:59:59 in winter time, after ten hours
        ("2026-10-25T06:00:00", False),
    ],
)
def test_quiet_hours_follow_the_local_clock(at: str, is_quiet: bool) -> None:
    assert NIGHT.is_quiet(utc(at)) is is_quiet


def test_quiet_hours_belong_to_the_weekday_on_which_they_begin() -> None:
    friday = QuietHours("UTC", time(22), time(7), frozenset({4}))
    assert friday.is_quiet(utc("2026-11-27T23:00:00"))
    assert friday.is_quiet(utc("2026-11-28T06:00:00"))
    assert not friday.is_quiet(utc("2026-11-28T23:00:00"))
    assert not friday.is_quiet(utc("2026-11-27T06:00:00"))


def test_a_local_time_that_the_clock_skips_is_an_hour_later() -> None:
    skipped = QuietHours("Europe/Berlin", time(2, 30), time(4))
    assert not skipped.is_quiet(utc("2026-03-29T01:29:59"))
    assert skipped.is_quiet(utc("2026-03-29T01:30:00"))  # 03:30 in summer time
    assert not skipped.is_quiet(utc("2026-03-29T02:00:00"))


def test_events_of_the_night_are_due_at_its_end() -> None:
    pending = Pending(first_at=utc("2026-03-28T23:00:00"))
    last = utc("2026-03-28T19:00:00")
    assert due_window(pending, last, TIMING, now=utc("2026-03-29T04:59:59")) is None
    assert due_window(pending, last, TIMING, now=utc("2026-03-29T05:00:00")) is Window.ALL


@pytest.mark.parametrize(("passes", "expected"), [(True, Window.CRITICAL), (False, None)])
def test_a_critical_event_passes_the_night_if_the_rule_permits(
    passes: bool, expected: Window | None
) -> None:
    at = utc("2026-03-28T23:00:00")
    pending = Pending(first_at=at - timedelta(hours=1), first_critical_at=at)
    timing = Timing(TIMING.group_wait, TIMING.group_interval, NIGHT, critical_passes=passes)
    assert due_window(pending, None, timing, now=at + timedelta(seconds=29)) is None
    assert due_window(pending, None, timing, now=at + timedelta(seconds=30)) is expected
