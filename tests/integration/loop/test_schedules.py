"""Schedules fire each instant once: catch-up, overlap, deaths, and what their owner may do."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.submit import SubmissionsSuspended
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.schedules import fire
from controlplane.commands.schedules.configure import (
    MAX_SCHEDULES,
    ScheduleFields,
    delete_schedule,
    pause_schedule,
    put_schedule,
    resume_schedule,
)
from controlplane.commands.schedules.fire import fire_due, run_schedule
from controlplane.commands.schedules.jobs import guid_of
from controlplane.commands.tenancy.accounts import create_user
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.roles import Role
from controlplane.domain.schedules.firing import CatchUp, Overlap
from controlplane.models import Alert, AuditLine, Job, Membership, Project, Schedule, ScheduleFiring
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.schedules import find_schedule
from controlplane.spec import InvalidSpec
from tests.harness.members import admit
from tests.integration.loop.conftest import Loop
from tests.integration.loop.deaths import at_statement, work_until_death

JOB = {"name": "report", "image": "x", "command": ["true"], "allow_unsatisfiable": True}
NOON = datetime(2031, 5, 4, 12, tzinfo=UTC)
BEFORE = NOON - timedelta(minutes=5)


@pytest.fixture
def put(loop: Loop) -> Callable[..., Schedule]:
    def put(name: str = "nightly", at: datetime = BEFORE, **fields: Any) -> Schedule:
        wanted = ScheduleFields(**{"cron": "*/10 * * * *", "job": JOB, **fields})
        project_id = Project.objects.get().pk
        put_schedule(project_id=project_id, name=name, wanted=wanted, owner=loop.owner, now=at)
        return find_schedule(project_id, name)

    return put


def tick(minutes: float) -> int:
    """Fire what is due so many minutes after noon."""
    now = NOON + timedelta(minutes=minutes)
    return fire_due(now=now, is_over=lambda: False)


def history(schedule: Schedule) -> list[tuple[int, str]]:
    """Return (minutes after noon, outcome) of the instants."""
    return [
        (int((firing.at - NOON).total_seconds() // 60), firing.outcome)
        for firing in schedule.firings.order_by("at")
    ]


def jobs() -> list[str | None]:
    return list(Job.objects.order_by("guid").values_list("guid", flat=True))


def finish(minutes: int) -> None:
    """End the job of the instant."""
    job = Job.objects.get(guid=guid_of("nightly", NOON + timedelta(minutes=minutes)))
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())


def test_each_instant_is_one_job_of_its_guid_and_label(
    loop: Loop, put: Callable[..., Schedule]
) -> None:
    schedule = put(overlap=Overlap.ALLOW)
    assert schedule.next_at == NOON
    assert tick(-0.1) == 0
    assert [tick(0), tick(0), tick(5), tick(10)] == [1, 0, 0, 1]
    assert jobs() == ["nightly/2031-05-04T12:00:00Z", "nightly/2031-05-04T12:10:00Z"]
    job = Job.objects.order_by("pk")[0]
    assert (job.owner, job.labels) == (loop.owner, {"schedule": "nightly"})
    assert history(schedule) == [(0, "started"), (10, "started")]
    assert schedule.firings.order_by("at")[0].job_id == job.pk
    schedule.refresh_from_db()
    assert schedule.next_at == NOON + timedelta(minutes=20)


def test_convergence_fires_schedules(loop: Loop, put: Callable[..., Schedule]) -> None:
    schedule = put(at=clock.now() - timedelta(minutes=11))
    assert loop.converge()["schedules_fired"] >= 1
    assert schedule.firings.filter(outcome="started").count() == 1


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (CatchUp.NONE, [(0, "missed")]),
        (CatchUp.LATEST, [(0, "missed"), (60, "started")]),
        (CatchUp.ALL, [(minute, "started") for minute in range(0, 70, 10)]),
    ],
)
def test_control_plane_was_away_for_an_hour(
    put: Callable[..., Schedule], rule: CatchUp, expected: list[tuple[int, str]]
) -> None:
    schedule = put(catch_up=rule, overlap=Overlap.ALLOW)
    tick(65)
    assert history(schedule) == expected
    assert Job.objects.count() == [state for _, state in expected].count("started")


def test_skip_waits_for_the_end_of_the_job(put: Callable[..., Schedule]) -> None:
    schedule = put(overlap=Overlap.SKIP)
    tick(0)
    tick(10)
    finish(0)
    tick(20)
    assert history(schedule) == [(0, "started"), (10, "skipped"), (20, "started")]


def test_deleted_job_is_no_overlap(put: Callable[..., Schedule]) -> None:
    schedule = put(overlap=Overlap.SKIP)
    tick(0)
    finish(0)
    delete_job(job_id=Job.objects.get().pk, actor="me", now=clock.now())
    tick(10)
    assert history(schedule) == [(0, "started"), (10, "started")]


def test_replace_cancels_the_unfinished_job(put: Callable[..., Schedule]) -> None:
    put(overlap=Overlap.REPLACE)
    tick(0)
    tick(10)
    first, second = Job.objects.order_by("pk")
    assert (first.finished_at is None, second.finished_at is None) == (False, True)
    assert "replaces" in AuditLine.objects.get(action="cancel.job").text


def test_refused_job_replaces_none(put: Callable[..., Schedule]) -> None:
    schedule = put(overlap=Overlap.REPLACE)
    tick(0)
    Schedule.objects.update(job={**JOB, "pool": "removed"})
    tick(10)
    assert history(schedule) == [(0, "started"), (10, "refused")]
    assert Job.objects.get().finished_at is None


def test_queue_starts_each_instant_after_the_job_before_it(put: Callable[..., Schedule]) -> None:
    schedule = put(overlap=Overlap.QUEUE)
    for minutes in (0, 10, 20):
        tick(minutes)
    assert history(schedule) == [(0, "started"), (10, "waiting"), (20, "waiting")]
    finish(0)
    tick(21)
    assert history(schedule) == [(0, "started"), (10, "started"), (20, "waiting")]
    finish(10)
    tick(22)
    tick(23)
    assert history(schedule)[-1] == (20, "started")
    assert Job.objects.count() == 3


def test_paused_schedule_fires_neither_instants_nor_its_queue(
    put: Callable[..., Schedule],
) -> None:
    schedule = put(overlap=Overlap.QUEUE)
    tick(0)
    tick(10)
    pause_schedule(schedule_id=schedule.pk, reason="audit", actor="me", now=NOON)
    finish(0)
    assert tick(30) == 0
    resume_schedule(
        schedule_id=schedule.pk, reason="", actor="me", now=NOON + timedelta(minutes=35)
    )
    tick(36)
    tick(40)
    # What the pause covers is not fired afterwards.
    assert history(schedule) == [(0, "started"), (10, "started"), (40, "waiting")]


@pytest.mark.parametrize("place", range(1, 40))
def test_death_at_any_statement_starts_no_instant_twice_and_loses_none(
    put: Callable[..., Schedule], place: int
) -> None:
    schedules = [put(name, overlap=Overlap.REPLACE) for name in ("a", "b")]
    work_until_death(lambda: tick(0), at_statement(place))
    tick(0.1)
    assert [history(schedule) for schedule in schedules] == [[(0, "started")]] * 2
    assert jobs() == [guid_of("a", NOON), guid_of("b", NOON)]


@pytest.mark.parametrize(
    ("rule", "overlap", "expected", "open_jobs"),
    [
        (CatchUp.NONE, Overlap.ALLOW, [(0, "started"), (10, "missed")], 1),
        (CatchUp.LATEST, Overlap.SKIP, [(0, "started"), (10, "missed"), (60, "skipped")], 1),
        (CatchUp.LATEST, Overlap.REPLACE, [(0, "started"), (10, "missed"), (60, "started")], 1),
        (CatchUp.LATEST, Overlap.ALLOW, [(0, "started"), (10, "missed"), (60, "started")], 2),
    ],
)
def test_job_of_a_process_that_died_is_in_the_history_after_an_outage(
    put: Callable[..., Schedule],
    monkeypatch: pytest.MonkeyPatch,
    rule: CatchUp,
    overlap: Overlap,
    expected: list[tuple[int, str]],
    open_jobs: int,
) -> None:
    schedule = put(catch_up=rule, overlap=overlap)

    def die(*_: Any) -> int:
        raise Died

    with monkeypatch.context() as context:
        context.setattr(fire, "_record", die)
        with pytest.raises(Died):
            tick(0)
    assert (history(schedule), Job.objects.count()) == ([], 1)
    tick(65)
    assert history(schedule) == expected
    assert Job.objects.filter(finished_at=None).count() == open_jobs


class Died(Exception):
    """The process was killed."""


def test_full_concurrency_key_refuses_an_instant(put: Callable[..., Schedule]) -> None:
    rule = {"key": "reports", "limit": 1, "on_conflict": "reject"}
    schedule = put(job={**JOB, "concurrency": rule}, overlap=Overlap.ALLOW)
    tick(0)
    tick(10)
    assert history(schedule) == [(0, "started"), (10, "refused")]
    text = schedule.firings.get(outcome="refused").text
    assert text.startswith("concurrency key reports is full: 1 open task of job")
    finish(0)
    tick(20)
    assert history(schedule)[-1] == (20, "started")


def test_replaced_job_is_not_in_the_way_of_its_successor(put: Callable[..., Schedule]) -> None:
    rule = {"key": "reports", "limit": 1, "on_conflict": "reject"}
    schedule = put(job={**JOB, "concurrency": rule}, overlap=Overlap.REPLACE)
    tick(0)
    tick(10)
    assert history(schedule) == [(0, "started"), (10, "started")]


def test_refused_job_is_recorded_and_does_not_stop_others(
    loop: Loop, put: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = put("bad"), put("good")
    Schedule.objects.filter(pk=bad.pk).update(job={**JOB, "pool": "removed"})
    tick(0)
    assert (history(bad), history(good)) == ([(0, "refused")], [(0, "started")])
    assert "removed" in bad.firings.get().text
    Schedule.objects.filter(pk=bad.pk).update(job={"name": 7})
    tick(10)
    assert history(bad)[-1] == (10, "refused")


def test_instants_skipped_after_a_refused_one_name_the_refusal(
    put: Callable[..., Schedule],
) -> None:
    schedule = put(catch_up=CatchUp.ALL)
    Schedule.objects.update(job={**JOB, "pool": "removed"})
    tick(25)
    assert history(schedule) == [(0, "refused"), (10, "skipped"), (20, "skipped")]
    texts = set(schedule.firings.filter(outcome="skipped").values_list("text", flat=True))
    assert texts == {"an earlier instant was due at the same time, and its job was refused"}


def test_instants_skipped_after_a_started_one_name_its_job(put: Callable[..., Schedule]) -> None:
    schedule = put(catch_up=CatchUp.ALL)
    tick(15)
    assert history(schedule) == [(0, "started"), (10, "skipped")]
    assert schedule.firings.get(outcome="skipped").text == "an earlier job has not finished"


def refusal_alerts() -> list[str]:
    found = Alert.objects.filter(kind="schedule_refused", cleared_at=None)
    return [f"{alert.subject}: {alert.text}" for alert in found]


def test_third_refused_job_in_succession_raises_an_alert_that_a_started_one_closes(
    put: Callable[..., Schedule],
) -> None:
    schedule = put(overlap=Overlap.ALLOW)
    tick(0)
    Schedule.objects.update(job={**JOB, "pool": "removed"})
    for minutes in (10, 20):
        tick(minutes)
    assert refusal_alerts() == []
    tick(30)
    [alert] = refusal_alerts()
    words = "schedule nightly in default/default: the last 3 jobs were refused, the latest one: "
    assert alert.startswith(words)
    assert "removed" in alert
    Schedule.objects.update(job=JOB)
    tick(40)
    assert history(schedule)[-1] == (40, "started")
    assert refusal_alerts() == []


@pytest.mark.parametrize("change", ["run", "write", "pause", "delete"])
def test_alert_of_refused_jobs_closes_when_users_change_or_run_the_schedule(
    put: Callable[..., Schedule], change: str
) -> None:
    schedule = put(overlap=Overlap.ALLOW, catch_up=CatchUp.ALL)
    Schedule.objects.update(job={**JOB, "pool": "removed"})
    tick(25)
    assert len(refusal_alerts()) == 1
    now = NOON + timedelta(minutes=26)
    if change == "run":
        Schedule.objects.update(job=JOB)
        run_schedule(find_schedule(schedule.project_id, "nightly"), actor="me", now=now)
    elif change == "write":
        put(at=now)
    elif change == "pause":
        pause_schedule(schedule_id=schedule.pk, reason="", actor="me", now=now)
    else:
        delete_schedule(schedule_id=schedule.pk, actor="me", now=now)
    assert refusal_alerts() == []


def test_skipped_instants_neither_raise_nor_close_the_alert(put: Callable[..., Schedule]) -> None:
    put(catch_up=CatchUp.ALL)
    Schedule.objects.update(job={**JOB, "pool": "removed"})
    tick(25)  # one refused, two skipped
    assert refusal_alerts() == []
    tick(30)
    tick(45)
    assert len(refusal_alerts()) == 1


def test_refused_jobs_of_a_queue_do_not_wait_for_each_other_and_raise_the_alert(
    put: Callable[..., Schedule],
) -> None:
    schedule = put(overlap=Overlap.QUEUE, catch_up=CatchUp.ALL)
    tick(0)
    tick(30)
    Schedule.objects.update(job={**JOB, "pool": "removed"})
    finish(0)
    assert refusal_alerts() == []
    tick(31)
    refused = [(minutes, "refused") for minutes in (10, 20, 30)]
    assert history(schedule) == [(0, "started"), *refused]
    assert len(refusal_alerts()) == 1


@pytest.mark.parametrize("change", ["pause", "calendar"])
def test_job_of_a_dead_process_is_recorded_when_the_schedule_is_paused_or_changed(
    put: Callable[..., Schedule], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = put()

    def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as context:
        context.setattr(fire, "_record", die)
        with pytest.raises(Died):
            tick(0)
    assert history(schedule) == []
    later = NOON + timedelta(minutes=2)
    if change == "pause":
        pause_schedule(schedule_id=schedule.pk, reason="", actor="me", now=later)
        assert history(schedule) == [(0, "started")]
        resume_schedule(schedule_id=schedule.pk, reason="", actor="me", now=later)
    else:
        put(cron="5/10 * * * *", at=later)
        assert history(schedule) == [(0, "started")]
    assert schedule.firings.get().job_id == Job.objects.get().pk
    tick(15)
    # The job is unfinished, and the rule for overlap is skip.
    assert history(schedule)[-1][1] == "skipped"
    assert Job.objects.count() == 1


def test_job_of_a_dead_process_replaces_the_one_before_it_when_the_schedule_is_paused(
    put: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = put(overlap=Overlap.REPLACE)
    tick(0)

    def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as context:
        # The process dies between the submission and the cancellation of the earlier job.
        context.setattr(fire, "_cancel_jobs", die)
        with pytest.raises(Died):
            tick(10)
    later = NOON + timedelta(minutes=12)
    pause_schedule(schedule_id=schedule.pk, reason="", actor="me", now=later)
    assert history(schedule) == [(0, "started"), (10, "started")]
    assert [job.ending_as is not None for job in Job.objects.order_by("pk")] == [True, False]


@pytest.mark.parametrize("fraction", [0, 1, 250_000])
def test_started_instants_and_manual_runs_have_the_jobs_of_their_guids(
    put: Callable[..., Schedule], fraction: int
) -> None:
    schedule = put(overlap=Overlap.ALLOW)
    tick(0)
    manual_at = NOON + timedelta(minutes=3, microseconds=fraction)
    job_id = run_schedule(schedule, actor="me", now=manual_at)
    assert schedule.firings.count() == 2
    assert check_all() == []
    Job.objects.filter(pk=job_id).update(guid="nightly/2031-05-04T12:00:01Z")
    assert [found.number for found in check_all()] == [90]


def test_owner_without_the_role_or_deactivated_starts_nothing(
    loop: Loop, put: Callable[..., Schedule]
) -> None:
    schedule = put(overlap=Overlap.ALLOW)
    Membership.objects.filter(user=loop.owner).delete()
    tick(0)
    User.objects.filter(pk=loop.owner.pk).update(is_active=False)
    tick(10)
    texts = schedule.firings.order_by("at").values_list("outcome", "text")
    assert list(texts) == [
        ("refused", "user owner may not submit to the project any more"),
        ("refused", "user owner is deactivated"),
    ]
    assert Job.objects.count() == 0


def test_suspended_submissions_postpone_instants(
    put: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = put()

    def refuse(**_: Any) -> Any:
        raise SubmissionsSuspended("no jobs are accepted now: full")

    with monkeypatch.context() as context:
        context.setattr("controlplane.commands.schedules.jobs.submit_jobs", refuse)
        tick(0)
        assert history(schedule) == []
    tick(0.5)
    assert history(schedule) == [(0, "started")]


def test_changed_schedule_keeps_the_jobs_that_were_submitted_meanwhile(
    put: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = put()
    submit = fire.submit_due

    def change_after_it(*args: Any, **kwargs: Any) -> Any:
        found = submit(*args, **kwargs)
        put(cron="0 0 * * *", at=NOON)
        return found

    monkeypatch.setattr(fire, "submit_due", change_after_it)
    tick(0)
    schedule.refresh_from_db()
    assert history(schedule) == [(0, "started")]
    assert schedule.next_at == NOON + timedelta(hours=12)


def test_write_of_the_same_calendar_keeps_a_due_instant(put: Callable[..., Schedule]) -> None:
    put()
    again = put(overlap=Overlap.ALLOW, at=NOON + timedelta(seconds=5))
    assert again.next_at == NOON
    assert put(cron="*/20 * * * *", at=NOON + timedelta(seconds=5)).next_at == NOON + timedelta(
        minutes=20
    )


def test_run_starts_a_job_now_though_paused_or_overlapping(
    put: Callable[..., Schedule],
) -> None:
    schedule = put(paused=True)
    now = NOON + timedelta(minutes=3)
    first = run_schedule(schedule, actor="me", now=now)
    second = run_schedule(schedule, actor="me", now=now + timedelta(seconds=1))
    assert first != second
    assert history(schedule) == [(3, "started"), (3, "started")]
    Schedule.objects.filter(pk=schedule.pk).update(job={**JOB, "pool": "removed"})
    changed = find_schedule(schedule.project_id, "nightly")
    with pytest.raises(Conflict):
        run_schedule(changed, actor="me", now=now + timedelta(hours=1))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"time_zone": "Europe/Atlantis"}, "time_zone"),
        ({"job": {**JOB, "guid": "mine"}}, "job.guid"),
        ({"job": {**JOB, "project": "other"}}, "job.project"),
        ({"job": {**JOB, "labels": {"schedule": "mine"}}}, "job.labels"),
        ({"job": {**JOB, "labels": "mine"}}, "job.labels"),
        ({"job": {**JOB, "pool": "missing"}}, "job.pool"),
        ({"job": {**JOB, "comand": ["true"]}}, "job.comand"),
        ({"job": {}}, "job.name"),
    ],
)
def test_faults_have_their_paths(
    put: Callable[..., Schedule], fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        put(**fields)
    assert field in [fault.field for fault in refused.value.faults]
    assert not Schedule.objects.exists()


def test_project_has_a_maximum(
    put: Callable[..., Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_SCHEDULES == 1_000
    monkeypatch.setattr("controlplane.commands.schedules.configure.MAX_SCHEDULES", 1)
    put("a")
    with pytest.raises(Conflict):
        put("b")
    put("a", cron="@daily")


def test_delete_leaves_the_jobs(put: Callable[..., Schedule]) -> None:
    schedule = put()
    tick(0)
    delete_schedule(schedule_id=schedule.pk, actor="me", now=NOON)
    assert (Schedule.objects.count(), ScheduleFiring.objects.count()) == (0, 0)
    assert Job.objects.count() == 1
    with pytest.raises(NotFound):
        delete_schedule(schedule_id=schedule.pk, actor="me", now=NOON)


def test_last_writer_owns_the_jobs(loop: Loop, put: Callable[..., Schedule]) -> None:
    put()
    other, _ = create_user(name="other", password=None, is_operator=False)
    admit(other, Role.SUBMITTER)
    wanted = ScheduleFields("*/10 * * * *", JOB)
    project_id = Project.objects.get().pk
    put_schedule(project_id=project_id, name="nightly", wanted=wanted, owner=other, now=BEFORE)
    tick(0)
    assert Job.objects.get().owner == other
    changed = AuditLine.objects.filter(action="change.schedule").get()
    assert (changed.before, changed.after) == ({"owner": "owner"}, {"owner": "other"})


@pytest.fixture
def many(loop: Loop) -> int:
    """Ten thousand schedules in two projects' worth of names, a thousand of them due at noon."""
    project, total, due = Project.objects.get(), 10_000, 1_000
    Schedule.objects.bulk_create(
        Schedule(
            project=project,
            name=f"s{number}",
            owner=loop.owner,
            cron="0 12 * * *" if number < due else "0 13 * * *",
            time_zone="UTC",
            catch_up="latest",
            overlap="skip",
            job=JOB,
            next_at=NOON if number < due else NOON + timedelta(hours=1),
            created_at=BEFORE,
            updated_at=BEFORE,
        )
        for number in range(total)
    )
    return due


def test_a_thousand_of_ten_thousand_fire_in_one_second(many: int) -> None:
    assert tick(0) == many
    assert Job.objects.count() == many
    assert tick(0.01) == 0
    assert Schedule.objects.filter(next_at=NOON + timedelta(days=1)).count() == many
