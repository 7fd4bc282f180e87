"""Schedules: each instant is one job, by the rules of overlap and catch-up, with its outcome."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.schedules.configure import (
    ScheduleFields,
    pause_schedule,
    put_schedule,
    resume_schedule,
)
from controlplane.domain.schedules.firing import CatchUp, Overlap
from controlplane.models import Attempt, Job, Membership, Project, Schedule
from controlplane.queries.schedules import find_schedule
from tests.scenarios.stage import Stage

MINUTES = 5
JOB: dict[str, Any] = {"name": "report", "image": "x", "command": ["true"]}
Put = Callable[..., Schedule]


@pytest.fixture
def put(stage: Stage) -> Put:
    """Write a schedule that fires each five minutes."""

    def put(**fields: Any) -> Schedule:
        stage.cell()
        wanted = ScheduleFields(**{"cron": f"*/{MINUTES} * * * *", "job": JOB, **fields})
        project_id = Project.objects.get().pk
        put_schedule(
            project_id=project_id,
            name="nightly",
            wanted=wanted,
            owner=stage.owner,
            now=clock.now(),
        )
        return find_schedule(project_id, "nightly")

    return put


def fire(stage: Stage, instants: int = 1) -> None:
    """Let time pass until just after so many instants; then jobs are placed and started."""
    now = clock.now()
    last = now.replace(minute=now.minute - now.minute % MINUTES, second=0, microsecond=0)
    then = last + timedelta(minutes=MINUTES * instants, seconds=1)
    stage.wait((then - now).total_seconds())
    stage.settle()
    stage.place()
    stage.start(*Attempt.objects.filter(started_at=None, finished_at=None))


def outcomes(schedule: Schedule) -> list[str]:
    """Return the outcomes of the instants in order."""
    return list(schedule.firings.order_by("at").values_list("outcome", flat=True))


def finish_first(stage: Stage) -> None:
    """End the oldest unfinished job of the schedule, and converge."""
    job = Job.objects.filter(finished_at=None).earliest("pk")
    stage.succeed(Attempt.objects.get(job=job))
    stage.settle()
    stage.place()


def test_each_instant_is_one_job_with_the_guid_of_name_and_instant(stage: Stage, put: Put) -> None:
    schedule = put(overlap=Overlap.ALLOW)
    fire(stage)
    fire(stage)
    instants = schedule.firings.order_by("at").values_list("at", flat=True)
    guids = [f"nightly/{at:%Y-%m-%dT%H:%M:%SZ}" for at in instants]
    assert list(Job.objects.order_by("pk").values_list("guid", flat=True)) == guids
    assert {job.labels["schedule"] for job in Job.objects.all()} == {"nightly"}
    assert instants[1] - instants[0] == timedelta(minutes=MINUTES)
    stage.check()


@pytest.mark.parametrize(
    ("rule", "expected", "jobs"),
    [
        (Overlap.SKIP, ["started", "skipped"], 1),
        (Overlap.ALLOW, ["started", "started"], 2),
        (Overlap.REPLACE, ["started", "started"], 1),
        (Overlap.QUEUE, ["started", "waiting"], 1),
    ],
)
def test_overlap_rule_decides_while_a_job_is_unfinished(
    stage: Stage, put: Put, rule: Overlap, expected: list[str], jobs: int
) -> None:
    schedule = put(overlap=rule)
    fire(stage)
    fire(stage)
    assert outcomes(schedule) == expected
    assert Job.objects.filter(finished_at=None).count() == jobs
    stage.check()


@pytest.mark.parametrize("rule", [Overlap.SKIP, Overlap.QUEUE])
def test_next_job_starts_after_the_end_of_the_one_before(
    stage: Stage, put: Put, rule: Overlap
) -> None:
    schedule = put(overlap=rule)
    fire(stage)
    fire(stage)
    finish_first(stage)
    fire(stage)
    expected = {
        Overlap.SKIP: ["started", "skipped", "started"],
        Overlap.QUEUE: ["started", "started", "waiting"],
    }
    assert outcomes(schedule) == expected[rule]
    assert Job.objects.filter(finished_at=None).count() == 1


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (CatchUp.NONE, ["missed", "started"]),
        (CatchUp.LATEST, ["missed", "started"]),
        (CatchUp.ALL, ["started", "started", "started", "started"]),
    ],
)
def test_outage_that_ends_at_an_instant_follows_the_catch_up_rule(
    stage: Stage, put: Put, rule: CatchUp, expected: list[str]
) -> None:
    schedule = put(catch_up=rule, overlap=Overlap.ALLOW)
    fire(stage, instants=4)
    assert outcomes(schedule) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (CatchUp.NONE, ["missed"]),
        (CatchUp.LATEST, ["missed", "started"]),
        (CatchUp.ALL, ["started", "started", "started"]),
    ],
)
def test_outage_that_ends_between_instants_follows_the_catch_up_rule(
    stage: Stage, put: Put, rule: CatchUp, expected: list[str]
) -> None:
    schedule = put(catch_up=rule, overlap=Overlap.ALLOW)
    now = clock.now()
    stage.wait(60 * (MINUTES * 3 + 2 - now.minute % MINUTES) - now.second)
    stage.settle()
    assert outcomes(schedule) == expected


def test_instants_of_a_pause_start_no_job(stage: Stage, put: Put) -> None:
    schedule = put(catch_up=CatchUp.ALL, overlap=Overlap.ALLOW)
    fire(stage)
    pause_schedule(schedule_id=schedule.pk, reason="audit", actor="owner", now=clock.now())
    fire(stage, instants=3)
    assert Job.objects.count() == 1
    resume_schedule(schedule_id=schedule.pk, reason="", actor="owner", now=clock.now())
    fire(stage)
    assert outcomes(schedule) == ["started", "started"]


def test_refused_job_does_not_stop_the_schedule(stage: Stage, put: Put) -> None:
    schedule = put(overlap=Overlap.ALLOW)
    membership = Membership.objects.get(user=stage.owner)
    membership.delete()
    fire(stage)
    membership.save()
    fire(stage)
    assert outcomes(schedule) == ["refused", "started"]
    assert "may not submit" in schedule.firings.earliest("at").text
