"""Write, pause, resume and delete schedules."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, changed_fields, record
from controlplane.commands.hooks.registry import PreparationHooks
from controlplane.commands.schedules.fire import record_submitted
from controlplane.commands.schedules.jobs import LABEL, body_of
from controlplane.commands.schedules.refusals import clear_refusals
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.admission import admit
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.domain.schedules.calendar import BadCalendar, Calendar, calendar_of
from controlplane.domain.schedules.firing import CatchUp, Overlap
from controlplane.models import Project, Schedule
from controlplane.queries.jobs.submission import load_submission_facts
from controlplane.spec import Fault, InvalidSpec, parse_job

MAX_SCHEDULES = 1_000
"""Schedules of one project."""


@dataclass(frozen=True, slots=True)
class ScheduleFields:
    """What its owner decides about a schedule."""

    cron: str
    job: Mapping[str, Any]
    time_zone: str = "UTC"
    catch_up: CatchUp = CatchUp.LATEST
    overlap: Overlap = Overlap.SKIP
    paused: bool = False


def put_schedule(
    *, project_id: int, name: str, wanted: ScheduleFields, owner: User, now: datetime
) -> bool:
    """Write or replace a schedule, which `owner` owns then; return whether it is new.

    A changed calendar begins with the first instant after `now`. Raise InvalidSpec, JobsRefused if
    its job would be refused now; Conflict if the project is archived or has too many schedules.
    """
    first = _first_instant(wanted, now)
    project = Project.objects.select_related("domain").get(pk=project_id)
    _refuse_archived(project)
    # Before the lock: hooks of other packages prepare the job.
    _check_job(project, name, wanted.job, owner, now)
    with transaction.atomic():
        # The lock counts concurrent writes.
        place = Project.objects.select_for_update(no_key=True).get(pk=project_id)
        _refuse_archived(place)
        former = Schedule.objects.filter(project_id=project_id, name=name).first()
        if former is None and place.schedules.count() >= MAX_SCHEDULES:
            raise Conflict(f"the project has {MAX_SCHEDULES} schedules, the most")
        written = Schedule(project=place, name=name, owner=owner, created_at=now)
        before = None if former is None else _facts(former)
        if former is not None:
            written.pk, written.created_at = former.pk, former.created_at
        written.cron, written.time_zone = wanted.cron, wanted.time_zone
        written.catch_up, written.overlap = wanted.catch_up, wanted.overlap
        written.job, written.is_paused = dict(wanted.job), wanted.paused
        written.updated_at = now
        written.next_at = _next_instant(former, written, first)
        if former is not None and former.next_at != written.next_at:
            record_submitted(former, now=now)
        if former is not None and former.is_paused and wanted.paused:
            written.paused_because = former.paused_because
        written.save()
        after = _facts(written)
        changes = (None, after) if before is None else changed_fields(before, after)
        action = Action.CREATE_SCHEDULE if before is None else Action.CHANGE_SCHEDULE
        _record(written, action, changes, owner.get_username(), now)
    return former is None


def pause_schedule(*, schedule_id: int, reason: str, actor: str, now: datetime) -> None:
    """Fire no further instant. Raise NotFound; Conflict if it is paused already."""
    _switch(schedule_id, True, reason, actor, now)


def resume_schedule(*, schedule_id: int, reason: str, actor: str, now: datetime) -> None:
    """Fire again, beginning with the next instant. Raise NotFound; Conflict if it is not paused."""
    _switch(schedule_id, False, reason, actor, now)


def delete_schedule(*, schedule_id: int, actor: str, now: datetime) -> None:
    """Delete a schedule with its history; its jobs stay. Raise NotFound."""
    with transaction.atomic():
        schedule = _lock(schedule_id)
        _record(schedule, Action.DELETE_SCHEDULE, (_facts(schedule), None), actor, now)
        schedule.delete()


def _first_instant(wanted: ScheduleFields, now: datetime) -> datetime:
    try:
        calendar = Calendar(wanted.cron, "UTC")
    except BadCalendar as error:
        raise InvalidSpec([Fault("cron", str(error))]) from None
    try:
        calendar = Calendar(wanted.cron, wanted.time_zone)
    except BadCalendar as error:
        raise InvalidSpec([Fault("time_zone", str(error))]) from None
    first = calendar.next_after(now)
    if first is None:
        raise InvalidSpec([Fault("cron", "has no instant in the next 50 years")])
    return first


def _next_instant(former: Schedule | None, written: Schedule, first: datetime) -> datetime | None:
    """Return the next instant. An unchanged calendar keeps its own, which may be due."""
    if written.is_paused:
        return None
    if former is None or former.next_at is None:
        return first
    is_same = (former.cron, former.time_zone) == (written.cron, written.time_zone)
    return former.next_at if is_same else first


def _refuse_archived(project: Project) -> None:
    if project.archived_at is not None:
        raise Conflict("the project is archived: it accepts no schedules")


def _check_job(
    project: Project, name: str, job: Mapping[str, Any], owner: User, now: datetime
) -> None:
    """Check the job as a submission would; its faults have paths below `job`."""
    faults = [
        Fault(f"job.{field}", "is set by the schedule")
        for field in ("guid", "domain", "project")
        if field in job
    ]
    labels = job.get("labels", {})
    if not isinstance(labels, dict):
        faults.append(Fault("job.labels", "must be a mapping of names to values"))
    elif LABEL in labels:
        faults.append(Fault("job.labels", f"{LABEL} is set by the schedule"))
    if faults:
        raise InvalidSpec(faults)
    try:
        body = body_of(Schedule(project=project, name=name, job=dict(job)), now)
        spec = parse_job(body)
        facts = load_submission_facts([spec], owner_id=owner.pk, now=now)
        admit([spec], [body], facts, PreparationHooks())
    except InvalidSpec as error:
        raise InvalidSpec([_below_job(fault) for fault in error.faults]) from None
    except JobsRefused as error:
        raise InvalidSpec([_below_job(fault) for _, fault in error.faults]) from None


def _below_job(fault: Fault) -> Fault:
    return Fault(f"job.{fault.field}" if fault.field else "job", fault.detail)


def _switch(schedule_id: int, paused: bool, reason: str, actor: str, now: datetime) -> None:
    with transaction.atomic():
        schedule = _lock(schedule_id)
        if schedule.is_paused is paused:
            state = "paused already" if paused else "not paused"
            raise Conflict(f"schedule {schedule.name} is {state}")
        before = _facts(schedule)
        record_submitted(schedule, now=now)
        schedule.is_paused, schedule.paused_because = paused, reason if paused else ""
        calendar = calendar_of(schedule.cron, schedule.time_zone)
        schedule.next_at = None if paused else calendar.next_after(now)
        schedule.updated_at = now
        schedule.save()
        changes = changed_fields(before, _facts(schedule))
        _record(schedule, Action.CHANGE_SCHEDULE, changes, actor, now, reason)


def _lock(schedule_id: int) -> Schedule:
    found = Schedule.objects.select_for_update(of=("self",)).select_related("owner")
    schedule = found.filter(pk=schedule_id).first()
    if schedule is None:
        raise NotFound("there is no such schedule any more")
    return schedule


def _facts(schedule: Schedule) -> dict[str, Any]:
    """Return what the audit log records: not the job, whose document may contain passwords."""
    return {
        "owner": schedule.owner.get_username(),
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "catch_up": str(schedule.catch_up),
        "overlap": str(schedule.overlap),
        "paused": schedule.is_paused,
        "job": str(schedule.job.get("name", "")),
    }


def _record(
    schedule: Schedule,
    action: Action,
    changes: tuple[Any, Any],
    actor: str,
    now: datetime,
    text: str = "",
) -> None:
    entry = AuditEntry(
        action,
        f"schedule {schedule.name}",
        text,
        project_id=schedule.project_id,
        before=changes[0],
        after=changes[1],
    )
    record(entry, actor=actor, now=now)
    clear_refusals(schedule, now=now)
