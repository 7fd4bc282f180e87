"""Ten thousand schedules in virtual time: clock changes, time zones, an outage of an hour."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.commands.schedules.fire import PAGE, fire_due
from controlplane.domain.schedules.calendar import Calendar
from controlplane.models import Job, Project, Schedule, ScheduleFiring
from tests.integration.loop.conftest import Loop

JOB = {"name": "report", "image": "x", "command": ["true"], "allow_unsatisfiable": True}
TOTAL, PER_PROJECT, AT_ONCE, OTHERS = 10_000, 1_000, 1_000, 12
MINUTE = timedelta(minutes=1)
# Statements of a page of schedules whose instants are on time, and of a tick without work.
OF_A_PAGE, OF_AN_IDLE_TICK = 60, 2

RULES = ("none", "latest", "all")
NIGHTLY = ("30 2 * * *", "Europe/Berlin")
HALF_HOURLY = ("*/30 * * * *", "Europe/Berlin")
MORNING = ("30 3 * * *", "Europe/Berlin")
KOLKATA = ("0 7 * * *", "Asia/Kolkata")
NEW_YORK = ("0 21 * * *", "America/New_York")
LORD_HOWE = ("45 11 * * *", "Australia/Lord_Howe")
CALENDARS = (NIGHTLY, HALF_HOURLY, MORNING, KOLKATA, NEW_YORK, LORD_HOWE)
NEVER_DUE = ("0 6 1 1 *", "Pacific/Auckland")

History = Mapping[str, str]


def on_time(*instants: str) -> dict[str, History]:
    """Return the history under each catch-up rule of instants that no outage touches."""
    return {rule: dict.fromkeys(instants, "started") for rule in RULES}


def in_outage(instant: str) -> dict[str, History]:
    """Return the history of one instant during the outage."""
    return {rule: {instant: "missed" if rule == "none" else "started"} for rule in RULES}


def around_outage(before: list[str], missed: list[str], after: list[str]) -> dict[str, History]:
    """Return the history of instants of which two are in the outage."""
    rest = dict.fromkeys([*before, *after], "started")
    first, last = missed
    return {
        "none": {**rest, first: "missed"},
        "latest": {**rest, first: "missed", last: "started"},
        "all": {**rest, first: "started", last: "started"},
    }


# In Berlin, 2031-03-30 goes from 02:00 (01:00 UTC) to 03:00. The outage is from 01:05 until 02:05.
SPRING = {
    NIGHTLY: on_time("01:00"),
    HALF_HOURLY: around_outage(["00:30", "01:00"], ["01:30", "02:00"], ["02:30", "03:00"]),
    MORNING: in_outage("01:30"),
    KOLKATA: in_outage("01:30"),
    NEW_YORK: on_time("01:00"),  # summer time since 2031-03-09
    LORD_HOWE: on_time("00:45"),  # +11
}
# 2031-10-26 goes from 03:00 (01:00 UTC) back to 02:00. The outage is from 00:35 until 01:35.
AUTUMN = {
    NIGHTLY: on_time("00:30"),
    HALF_HOURLY: around_outage(["00:30"], ["01:00", "01:30"], ["02:00", "02:30", "03:00"]),
    MORNING: on_time("02:30"),
    KOLKATA: in_outage("01:30"),
    NEW_YORK: in_outage("01:00"),
    LORD_HOWE: in_outage("00:45"),
}


def plan(loop: Loop, begin: datetime) -> None:
    """Write ten thousand schedules: a thousand of one calendar, some of others, many not due."""
    first = Project.objects.get()
    projects = [first] + [
        Project.objects.create(domain=first.domain, name=f"more-{n}")
        for n in range(TOTAL // PER_PROJECT - 1)
    ]
    calendars = [NIGHTLY] * (AT_ONCE - OTHERS)
    calendars += [calendar for calendar in CALENDARS for _ in range(OTHERS)]
    calendars += [NEVER_DUE] * (TOTAL - len(calendars))
    instants = {found: Calendar(*found).next_after(begin) for found in {*calendars}}
    Schedule.objects.bulk_create(
        Schedule(
            project=projects[number // PER_PROJECT],
            name=f"s{number}",
            owner=loop.owner,
            cron=cron,
            time_zone=zone,
            catch_up=RULES[number % len(RULES)],
            overlap="allow",
            job=JOB,
            next_at=instants[cron, zone],
            created_at=begin,
            updated_at=begin,
        )
        for number, (cron, zone) in enumerate(calendars)
    )


def histories() -> dict[tuple[tuple[str, str], str], set[tuple[tuple[str, str], ...]]]:
    """Return the different histories of the schedules of each calendar and catch-up rule."""
    lines: dict[int, list[tuple[str, str]]] = {}
    for schedule_id, at, outcome in ScheduleFiring.objects.order_by("at").values_list(
        "schedule_id", "at", "outcome"
    ):
        lines.setdefault(schedule_id, []).append((f"{at:%H:%M}", outcome))
    found: dict[tuple[tuple[str, str], str], set[tuple[tuple[str, str], ...]]] = {}
    for schedule in Schedule.objects.all():
        key = ((schedule.cron, schedule.time_zone), schedule.catch_up)
        found.setdefault(key, set()).add(tuple(lines.get(schedule.pk, ())))
    return found


@pytest.mark.parametrize(
    ("day", "away", "expected"),
    [
        (datetime(2031, 3, 30, tzinfo=UTC), ("01:05", "02:05"), SPRING),
        (datetime(2031, 10, 26, tzinfo=UTC), ("00:35", "01:35"), AUTUMN),
    ],
    ids=["spring", "autumn"],
)
def test_each_of_ten_thousand_schedules_fires_as_its_rule_requires(
    loop: Loop,
    day: datetime,
    away: tuple[str, str],
    expected: Mapping[tuple[str, str], Mapping[str, History]],
) -> None:
    begin = day + 10 * MINUTE
    plan(loop, begin)
    assert Schedule.objects.count() == TOTAL
    statements = {}
    for minutes in range(181 - 10):
        now = begin + minutes * MINUTE
        if away[0] <= f"{now:%H:%M}" < away[1]:
            continue
        with CaptureQueriesContext(
            connection,
        ) as captured:
            fired = fire_due(now=now, is_over=lambda: False)
        statements[f"{now:%H:%M}"] = fired, len(captured)
    wanted = {
        (calendar, rule): {tuple(sorted(expected[calendar][rule].items()))}
        for calendar, rule in product(CALENDARS, RULES)
    }
    wanted |= {(NEVER_DUE, rule): {()} for rule in RULES}
    assert histories() == wanted
    assert max(fired for fired, _ in statements.values()) >= AT_ONCE
    for at, (fired, count) in statements.items():
        pages = -(-fired // PAGE)
        assert count <= OF_AN_IDLE_TICK + pages * OF_A_PAGE, (at, fired, count)
    started = ScheduleFiring.objects.filter(outcome="started")
    assert started.values("job_id").distinct().count() == started.count() == Job.objects.count()


def test_tick_processes_a_page_and_stops_when_its_time_is_over(loop: Loop) -> None:
    begin = datetime(2031, 3, 30, 0, 10, tzinfo=UTC)
    plan(loop, begin)
    answers = iter([False, True, True])
    at_change = datetime(2031, 3, 30, 1, 0, 1, tzinfo=UTC)
    Schedule.objects.exclude(cron=NIGHTLY[0]).delete()
    assert fire_due(now=at_change, is_over=lambda: next(answers)) == PAGE
    assert fire_due(now=at_change, is_over=lambda: False) == AT_ONCE - PAGE
    assert fire_due(now=at_change, is_over=lambda: False) == 0
