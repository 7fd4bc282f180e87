"""Quiet hours in local time, also when the clock changes."""

from datetime import UTC, datetime, time, timedelta

import pytest

from controlplane.domain.notifications.windows import (
    Pending,
    QuietHours,
    Timing,
    Window,
    due_window,
    next_message_at,
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


@pytest.mark.parametrize(
    ("first_at", "critical_at", "last_at", "expected"),
    [
        (None, None, None, None),
        ("2026-11-27T12:00:00", None, None, "2026-11-27T12:00:30"),
        ("2026-11-27T11:00:00", None, None, "2026-11-27T12:00:10"),  # at once
        ("2026-11-27T12:00:00", None, "2026-11-27T11:59:00", "2026-11-27T12:04:00"),
        ("2026-11-27T20:59:50", None, None, "2026-11-28T06:00:00"),  # the night has begun
        ("2026-11-27T20:59:50", "2026-11-27T22:00:00", None, "2026-11-27T22:00:30"),
    ],
)
def test_the_next_message_is_known(
    first_at: str | None, critical_at: str | None, last_at: str | None, expected: str | None
) -> None:
    now = utc("2026-11-27T12:00:10")
    pending = Pending(*(utc(at) if at else None for at in (first_at, critical_at)))
    last = utc(last_at) if last_at else None
    found = next_message_at(pending, last, TIMING, now=now)
    assert found == (utc(expected) if expected else None)
    if found is not None:
        assert due_window(pending, last, TIMING, now=found) is not None
        before = found - timedelta(microseconds=1)
        assert before < now or due_window(pending, last, TIMING, now=before) is None
