"""What due instants start: the catch-up rule, then the overlap rule."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.domain.schedules.calendar import Calendar
from controlplane.domain.schedules.firing import (
    CatchUp,
    FiringPlan,
    Overlap,
    ScheduleFacts,
    plan_firings,
)

NOON = datetime(2031, 5, 4, 12, tzinfo=UTC)


def plan(now: datetime, cron: str = "*/10 * * * *", **facts: Any) -> FiringPlan:
    """Plan a schedule whose instant at noon is due."""
    values = {"catch_up": CatchUp.ALL, "overlap": Overlap.ALLOW, "next_at": NOON, **facts}
    return plan_firings(ScheduleFacts(Calendar(cron, "UTC"), **values), now=now)


def found(plan: FiringPlan) -> list[tuple[int, str]]:
    """Return (minutes after noon, outcome) of each instant."""
    return [
        (int((firing.at - NOON).total_seconds() // 60), str(firing.outcome))
        for firing in plan.firings
    ]


@pytest.mark.parametrize("rule", CatchUp)
@pytest.mark.parametrize("seconds", [0, 59, 60])
def test_timely_instant_starts_under_every_rule(rule: CatchUp, seconds: int) -> None:
    made = plan(NOON + timedelta(seconds=seconds), catch_up=rule)
    assert found(made) == [(0, "started")]
    assert made.next_at == NOON + timedelta(minutes=10)


HOUR_LATER = NOON + timedelta(minutes=65)
"""The control plane was away for an hour: seven instants are due, none of them timely."""


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (CatchUp.NONE, [(0, "missed")]),
        (CatchUp.LATEST, [(0, "missed"), (60, "started")]),
        (CatchUp.ALL, [(minute, "started") for minute in range(0, 70, 10)]),
    ],
)
def test_catch_up_after_an_hour(rule: CatchUp, expected: list[tuple[int, str]]) -> None:
    made = plan(HOUR_LATER, catch_up=rule)
    assert found(made) == expected
    assert made.next_at == NOON + timedelta(minutes=70)


@pytest.mark.parametrize("rule", [CatchUp.NONE, CatchUp.LATEST])
def test_timely_instant_is_the_only_one_that_starts_after_missed_ones(rule: CatchUp) -> None:
    made = plan(NOON + timedelta(minutes=60, seconds=30), catch_up=rule)
    assert found(made) == [(0, "missed"), (60, "started")]


def test_at_most_a_hundred_missed_instants_are_caught_up() -> None:
    made = plan(NOON + timedelta(minutes=200), cron="* * * * *")
    assert found(made) == [(0, "missed")] + [(minute, "started") for minute in range(101, 201)]


@pytest.mark.parametrize(
    ("rule", "is_open", "expected", "replaces"),
    [
        (Overlap.ALLOW, True, ["started", "started", "started"], False),
        (Overlap.SKIP, False, ["started", "skipped", "skipped"], False),
        (Overlap.SKIP, True, ["skipped", "skipped", "skipped"], False),
        (Overlap.REPLACE, False, ["skipped", "skipped", "started"], False),
        (Overlap.REPLACE, True, ["skipped", "skipped", "started"], True),
        (Overlap.QUEUE, False, ["started", "waiting", "waiting"], False),
        (Overlap.QUEUE, True, ["waiting", "waiting", "waiting"], False),
    ],
)
def test_overlap_of_three_caught_up_instants(
    rule: Overlap, is_open: bool, expected: list[str], replaces: bool
) -> None:
    made = plan(NOON + timedelta(minutes=20), overlap=rule, has_open_job=is_open)
    assert [outcome for _, outcome in found(made)] == expected
    assert made.replaces is replaces


def test_instants_queue_behind_others_though_no_job_runs() -> None:
    made = plan(NOON, overlap=Overlap.QUEUE, waiting=1)
    assert found(made) == [(0, "waiting")]


def test_queue_is_bounded() -> None:
    made = plan(NOON + timedelta(minutes=20), overlap=Overlap.QUEUE, has_open_job=True, waiting=98)
    assert [outcome for _, outcome in found(made)] == ["waiting", "waiting", "skipped"]


def test_missed_instants_cancel_no_job() -> None:
    made = plan(HOUR_LATER, catch_up=CatchUp.NONE, overlap=Overlap.REPLACE, has_open_job=True)
    assert (found(made), made.replaces) == ([(0, "missed")], False)


@pytest.mark.parametrize("rule", CatchUp)
def test_instant_whose_job_exists_has_started_however_late(rule: CatchUp) -> None:
    # A process died after it had submitted the job of noon.
    made = plan(HOUR_LATER, catch_up=rule, submitted={NOON: False})
    assert found(made)[0] == (0, "started")
    expected = {"none": [(10, "missed")], "latest": [(10, "missed"), (60, "started")]}
    later = [(minute, "started") for minute in range(10, 70, 10)]
    assert found(made)[1:] == expected.get(str(rule), later)


@pytest.mark.parametrize(
    ("rule", "expected", "replaces"),
    [
        (Overlap.ALLOW, ["started", "started", "started"], False),
        (Overlap.SKIP, ["started", "skipped", "skipped"], False),
        (Overlap.REPLACE, ["started", "skipped", "started"], True),
        (Overlap.QUEUE, ["started", "waiting", "waiting"], False),
    ],
)
def test_job_that_is_not_recorded_yet_is_an_unfinished_job(
    rule: Overlap, expected: list[str], replaces: bool
) -> None:
    made = plan(NOON + timedelta(minutes=20), overlap=rule, submitted={NOON: True})
    assert [outcome for _, outcome in found(made)] == expected
    assert made.replaces is replaces
