"""Fire due schedules. Only this module writes what became of instants.

The jobs are submitted first, then the instants are recorded with the next instant of the schedule.
After a death in between, the same guids lead to the same jobs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.schedules.jobs import DueJob, StartedJob, submit_due
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.schedules.calendar import calendar_of
from controlplane.domain.schedules.firing import (
    CatchUp,
    Firing,
    FiringPlan,
    Outcome,
    Overlap,
    ScheduleFacts,
    plan_firings,
)
from controlplane.models import Schedule, ScheduleFiring
from controlplane.queries.schedules import ScheduleLoad, list_due, list_ready, load_loads
from controlplane.queries.sql import execute, rows

PAGE = 100
"""Schedules that are processed at once."""

_NO_LOAD = ScheduleLoad()

_MARK_ENDED = """
UPDATE controlplane_schedulefiring f SET is_ended = true
WHERE f.schedule_id = ANY(%(ids)s) AND f.outcome = %(started)s AND NOT f.is_ended AND NOT EXISTS (
    SELECT FROM controlplane_job j
    WHERE j.id = f.job_id AND j.finished_at IS NULL AND j.deleted_at IS NULL)
"""
_LOCK = """
SELECT id, next_at, updated_at FROM controlplane_schedule
WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE
"""
_ADVANCE = """
UPDATE controlplane_schedule s SET next_at = v.next_at
FROM unnest(%s::bigint[], %s::timestamptz[]) AS v(id, next_at) WHERE s.id = v.id
"""


@dataclass(frozen=True, slots=True)
class _PlannedSchedule:
    schedule: Schedule
    plan: FiringPlan
    load: ScheduleLoad

    def due(self) -> list[DueJob]:
        return [
            DueJob(self.schedule, firing.at)
            for firing in self.plan.firings
            if firing.outcome is Outcome.STARTED
        ]


def fire_due(*, now: datetime, is_over: Callable[[], bool]) -> int:
    """Process due schedules, then queues, until `is_over()`; return the number of instants."""
    done, seen = 0, set[int]()
    while not is_over() and (page := list_due(now, PAGE, but=seen)):
        # A schedule that cannot be processed now is due again in the next tick.
        seen.update(schedule.pk for schedule in page)
        for owner, schedules in _by_owner(page):
            done += _fire(schedules, owner, now)
    seen.clear()
    while not is_over() and (ready := list_ready(PAGE, but=seen)):
        seen.update(schedule.pk for schedule, _ in ready)
        instants = {schedule.pk: at for schedule, at in ready}
        for owner, schedules in _by_owner(schedule for schedule, _ in ready):
            done += _start_waiting(schedules, instants, owner, now)
    return done


def run_schedule(schedule: Schedule, *, actor: str, now: datetime) -> int:
    """Submit the job now, whatever the calendar and the overlap rule; return its id.

    Raise Conflict if it is refused.
    """
    started = submit_due([DueJob(schedule, now)], owner=schedule.owner, now=now)
    one = started[schedule.pk, now]
    if one.job_id is None:
        raise Conflict(one.refusal or "no jobs are accepted now")
    with transaction.atomic():
        if not rows(_LOCK, [[schedule.pk]]):
            raise NotFound(f"the project has no schedule {schedule.name}")
        _insert([_row(schedule, Firing(now, Outcome.STARTED), one, now)])
        entry = AuditEntry(
            Action.RUN_SCHEDULE,
            f"schedule {schedule.name}",
            project_id=schedule.project_id,
            after={"job": one.job_id},
        )
        record(entry, actor=actor, now=now)
    return one.job_id


def _fire(schedules: Sequence[Schedule], owner: User, now: datetime) -> int:
    ids = [schedule.pk for schedule in schedules]
    execute(_MARK_ENDED, {"ids": ids, "started": str(Outcome.STARTED)})
    loads = load_loads(ids)
    planned = [_plan(schedule, loads.get(schedule.pk, _NO_LOAD), now) for schedule in schedules]
    started = submit_due([job for item in planned for job in item.due()], owner=owner, now=now)
    for item in planned:
        # A refused job replaces none.
        if item.plan.replaces and any(started[job.key].job_id is not None for job in item.due()):
            _cancel(item, owner, now)
    return _record(planned, started, now)


def _plan(schedule: Schedule, load: ScheduleLoad, now: datetime) -> _PlannedSchedule:
    assert schedule.next_at is not None
    facts = ScheduleFacts(
        calendar=calendar_of(schedule.cron, schedule.time_zone),
        catch_up=CatchUp(schedule.catch_up),
        overlap=Overlap(schedule.overlap),
        next_at=schedule.next_at,
        has_open_job=bool(load.open_jobs),
        waiting=load.waiting,
    )
    return _PlannedSchedule(schedule, plan_firings(facts, now=now), load)


def _cancel(item: _PlannedSchedule, owner: User, now: datetime) -> None:
    reason = f"schedule {item.schedule.name}: the next instant replaces it"
    for job_id in item.load.open_jobs:
        # A job that was deleted meanwhile needs no end.
        try:
            cancel_job(
                job_id=job_id, reason=reason, force=False, actor=owner.get_username(), now=now
            )
        except NotFound:
            continue


def _record(
    planned: Sequence[_PlannedSchedule],
    started: Mapping[tuple[int, datetime], StartedJob],
    now: datetime,
) -> int:
    """Record the instants, and advance the schedules that have not been changed since."""
    with transaction.atomic():
        current = {
            schedule_id: rest
            for schedule_id, *rest in rows(_LOCK, [[item.schedule.pk for item in planned]])
        }
        made: list[ScheduleFiring] = []
        advanced: list[_PlannedSchedule] = []
        for item in planned:
            schedule = item.schedule
            if schedule.pk not in current:
                continue
            keys = [(schedule.pk, firing.at) for firing in item.plan.firings]
            if any(key in started and started[key].is_postponed for key in keys):
                continue
            is_same = current[schedule.pk] == [schedule.next_at, schedule.updated_at]
            for key, firing in zip(keys, item.plan.firings, strict=True):
                # A changed schedule has other instants, but these jobs exist.
                if is_same or (key in started and started[key].job_id is not None):
                    made.append(_row(schedule, firing, started.get(key), now))
            advanced += [item] * is_same
        _insert(made)
        values = [(item.schedule.pk, item.plan.next_at) for item in advanced]
        if values:
            execute(_ADVANCE, [list(column) for column in zip(*values, strict=True)])
    return len(made)


def _start_waiting(
    schedules: Sequence[Schedule], instants: Mapping[int, datetime], owner: User, now: datetime
) -> int:
    due = [DueJob(schedule, instants[schedule.pk]) for schedule in schedules]
    started = submit_due(due, owner=owner, now=now)
    done = 0
    for (schedule_id, at), one in started.items():
        if one.is_postponed:
            continue
        outcome = Outcome.STARTED if one.job_id is not None else Outcome.REFUSED
        waiting = ScheduleFiring.objects.filter(
            schedule_id=schedule_id, at=at, outcome=Outcome.WAITING
        )
        done += waiting.update(outcome=outcome, text=one.refusal, job_id=one.job_id, fired_at=now)
    return done


def _row(
    schedule: Schedule, firing: Firing, one: StartedJob | None, now: datetime
) -> ScheduleFiring:
    outcome, text, job_id = firing.outcome, firing.text, None
    if one is not None and one.job_id is not None:
        job_id = one.job_id
    elif one is not None:
        outcome, text = Outcome.REFUSED, one.refusal
    return ScheduleFiring(
        schedule=schedule, at=firing.at, fired_at=now, outcome=outcome, text=text, job_id=job_id
    )


def _insert(made: Sequence[ScheduleFiring]) -> None:
    # A concurrent tick has recorded the same instants.
    ScheduleFiring.objects.bulk_create(made, ignore_conflicts=True)


def _by_owner(schedules: Iterable[Schedule]) -> Iterable[tuple[User, list[Schedule]]]:
    ordered = sorted(schedules, key=lambda schedule: schedule.owner_id)
    for _, found in groupby(ordered, key=lambda schedule: schedule.owner_id):
        listed = list(found)
        yield listed[0].owner, listed
