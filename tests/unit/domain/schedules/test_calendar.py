"""Instants of cron expressions: both clock changes, time zones, leap days, bounded searches."""

import operator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from random import Random

import pytest

from controlplane.domain.schedules.calendar import BadCalendar, Calendar
from tests.simulation.local_times import CHANGES, ClockChange, draw_calendars


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def first(cron: str, zone: str, after: str, count: int) -> list[str]:
    found = islice(Calendar(cron, zone).after(at(after)), count)
    return [f"{instant:%m-%d %H:%M}" for instant in found]


def test_daily_instant_in_the_skipped_hour_fires_right_after_it() -> None:
    # In Berlin, 2031-03-30 goes from 02:00 (01:00 UTC) to 03:00.
    found = first("30 2 * * *", "Europe/Berlin", "2031-03-29T12:00", 2)
    assert found == ["03-30 01:00", "03-31 00:30"]


def test_daily_instant_in_the_repeated_hour_fires_once() -> None:
    # In Berlin, 2031-10-26 goes from 03:00 (01:00 UTC) back to 02:00.
    found = first("30 2 * * *", "Europe/Berlin", "2031-10-25T12:00", 2)
    assert found == ["10-26 00:30", "10-27 01:30"]


@pytest.mark.parametrize("after", ["2031-10-26T00:30", "2031-10-26T00:45", "2031-10-26T01:10"])
def test_repeated_hour_does_not_return_instants_of_its_first_pass(after: str) -> None:
    assert first("30 2 * * *", "Europe/Berlin", after, 1) == ["10-27 01:30"]


def test_frequent_instants_follow_the_elapsed_time_through_both_changes() -> None:
    spring = first("*/30 * * * *", "Europe/Berlin", "2031-03-30T00:00", 4)
    autumn = first("*/30 * * * *", "Europe/Berlin", "2031-10-26T00:00", 4)
    assert spring == ["03-30 00:30", "03-30 01:00", "03-30 01:30", "03-30 02:00"]
    assert autumn == ["10-26 00:30", "10-26 01:00", "10-26 01:30", "10-26 02:00"]


def test_clock_change_of_half_an_hour() -> None:
    # On Lord Howe Island, 2031-10-05 goes from 02:00 (+10:30) to 02:30 (+11).
    assert first("15 2 * * *", "Australia/Lord_Howe", "2031-10-04T12:00", 2) == [
        "10-04 15:30",
        "10-05 15:15",
    ]


@pytest.mark.parametrize(
    ("cron", "after", "found"),
    [
        # 2031-04-06 goes from 02:00 (+11, 15:00 UTC) back to 01:30 (+10:30).
        ("*/10 2 * * *", "2031-04-05T15:10", ["04-05 15:30", "04-05 15:40"]),
        ("45 * * * *", "2031-04-05T14:40", ["04-05 14:45", "04-05 15:15", "04-05 16:15"]),
        # 2031-10-05 goes from 02:00 (+10:30, 15:30 UTC) to 02:30 (+11).
        ("*/10 3 * * *", "2031-10-04T14:30", ["10-04 16:00", "10-04 16:10"]),
        ("*/10 3 * * *", "2031-10-04T15:40", ["10-04 16:00", "10-04 16:10"]),
    ],
)
def test_no_instant_is_lost_near_a_change_of_half_an_hour(
    cron: str, after: str, found: list[str]
) -> None:
    assert first(cron, "Australia/Lord_Howe", after, len(found)) == found


def test_skipped_midnight_has_no_instants_that_follow_the_elapsed_time() -> None:
    # In Santiago, 2031-09-07 goes from 00:00 (04:00 UTC) to 01:00.
    found = first("*/30 0 * * SUN", "America/Santiago", "2031-09-06T12:00", 1)
    assert found == ["09-14 03:00"]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.zone} {change.minutes}")
def test_instants_near_changes_of_clocks_are_those_of_another_implementation(
    change: ClockChange,
) -> None:
    for number in range(20):
        rng = Random(f"{change} {number}")
        begin = rng.choice(change.moments()).timestamp() - rng.uniform(30.0, 250.0)
        since = datetime.fromtimestamp(begin, UTC)
        until = since + timedelta(hours=rng.choice([0.1, 3.0, 30.0]))
        for (cron, zone), times in draw_calendars(rng, begin, change).items():
            found = takewhile(partial(operator.ge, until), Calendar(cron, zone).after(since))
            assert list(found) == times.between(since, until), (cron, zone, since)


def test_same_local_time_is_another_instant_in_each_zone() -> None:
    assert first("0 9 * * *", "Asia/Kolkata", "2031-05-01T00:00", 1) == ["05-01 03:30"]
    assert first("0 9 * * *", "America/New_York", "2031-05-01T00:00", 1) == ["05-01 13:00"]


def test_weekdays_last_days_and_leap_days() -> None:
    assert first("0 0 * * MON-FRI", "UTC", "2031-05-02T12:00", 2) == ["05-05 00:00", "05-06 00:00"]
    assert first("0 0 L * *", "UTC", "2032-02-01T00:00", 2) == ["02-29 00:00", "03-31 00:00"]
    leap = Calendar("0 0 29 2 *", "UTC").next_after(at("2031-01-01T00:00"))
    assert leap == at("2032-02-29T00:00")


@pytest.mark.parametrize(
    ("alias", "found"),
    [("@hourly", "05-01 01:00"), ("@daily", "05-02 00:00"), ("@Monthly", "06-01 00:00")],
)
def test_aliases(alias: str, found: str) -> None:
    assert first(alias, "UTC", "2031-05-01T00:30", 1) == [found]


BAD = (
    *("", "* * * *", "* * * * * *", "60 * * * *", "0 24 * * *", "0 0 30 2 *", "0 0 * * 9"),
    *("@reboot", "a b c d e", "*/0 * * * *", "5-1 * * * *", "-1 * * * *"),
)


@pytest.mark.parametrize("cron", BAD)
def test_bad_expressions_are_refused(cron: str) -> None:
    with pytest.raises(BadCalendar):
        Calendar(cron, "UTC")


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "../etc/passwd", "/etc/localtime", "a\0b"])
def test_bad_zones_are_refused(zone: str) -> None:
    with pytest.raises(BadCalendar):
        Calendar("* * * * *", zone)


def test_last_instants_of_a_long_time_are_found_by_a_bounded_search() -> None:
    calendar = Calendar("* * * * *", "UTC")
    until = at("2031-05-01T12:00")
    found = calendar.last_until(until, since=at("2001-01-01T00:00"), most=100)
    assert found == [until - timedelta(minutes=number) for number in range(99, -1, -1)]
    rare = Calendar("0 0 1 1 *", "UTC").last_until(until, since=at("2029-01-01T00:00"), most=100)
    assert rare == [at(f"{year}-01-01T00:00") for year in (2029, 2030, 2031)]


def test_first_instant_is_among_the_last_ones() -> None:
    calendar = Calendar("0 * * * *", "UTC")
    since, until = at("2031-05-01T11:00"), at("2031-05-01T12:59")
    assert calendar.last_until(until, since=since, most=100) == [since, since + timedelta(hours=1)]
    assert calendar.last_until(since, since=since, most=100) == [since]
