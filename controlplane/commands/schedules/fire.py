"""Fire due schedules. Only this module writes what became of instants.

The jobs are submitted first, then the instants are recorded with the next instant of the schedule.
After a death in between, the same guids lead to the same jobs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.schedules.jobs import DueJob, StartedJob, guid_of, submit_due
from controlplane.commands.schedules.refusals import report_refusals
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.schedules.calendar import calendar_of
from controlplane.domain.schedules.firing import (
    LATE_SECONDS,
    CatchUp,
    Firing,
    FiringPlan,
    Outcome,
    Overlap,
    ScheduleFacts,
    list_due_instants,
    plan_firings,
)
from controlplane.models import Schedule, ScheduleFiring
from controlplane.queries.schedules import (
    InstantJob,
    ScheduleLoad,
    find_submitted,
    list_due,
    list_ready,
    load_loads,
)
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
    submitted: Mapping[datetime, InstantJob] = field(default_factory=dict)

    @property
    def replaced_jobs(self) -> list[int]:
        """Return the unfinished jobs that the last instant replaces."""
        last = max(firing.at for firing in self.plan.firings)
        found = [job.job_id for at, job in self.submitted.items() if job.is_open and at != last]
        return [*self.load.open_jobs, *found]

    def due(self) -> list[DueJob]:
        replaced = self.replaced_jobs if self.plan.replaces else ()
        return [
            DueJob(self.schedule, firing.at, replaced)
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
        instants = {schedule.pk: at for schedule, at in ready}
        for owner, schedules in _by_owner(schedule for schedule, _ in ready):
            decided = _start_waiting(schedules, instants, owner, now)
            done += len(decided)
            # Behind a refused job, the next instant of the queue may start.
            seen.update({schedule.pk for schedule in schedules} - decided)
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
        report_refusals([schedule], now=now)
        entry = AuditEntry(
            Action.RUN_SCHEDULE,
            f"schedule {schedule.name}",
            project_id=schedule.project_id,
            after={"job": one.job_id},
        )
        record(entry, actor=actor, now=now)
    return one.job_id


def record_submitted(schedule: Schedule, *, now: datetime) -> None:
    """Record the due instants whose jobs exist, before a change of the locked schedule drops them.

    A process submitted these jobs and died before it recorded them, and before it cancelled the
    jobs that the last one replaces.
    """
    if schedule.next_at is None or schedule.next_at > now:
        return
    guids = {(schedule.project_id, guid): at for guid, at in _due_guids(schedule, now).items()}
    found = find_submitted(guids)
    rows_of_jobs = [
        _row(schedule, Firing(guids[key], Outcome.STARTED), StartedJob(job.job_id), now)
        for key, job in sorted(found.items())
    ]
    _insert(rows_of_jobs)
    if found and schedule.overlap == Overlap.REPLACE:
        last = max(guids[key] for key in found)
        kept = {job.job_id for key, job in found.items() if guids[key] == last}
        load = load_loads([schedule.pk]).get(schedule.pk, _NO_LOAD)
        replaced = [job_id for job_id in load.open_jobs if job_id not in kept]
        _cancel_jobs(schedule, replaced, schedule.owner, now)


def _due_guids(schedule: Schedule, now: datetime) -> dict[str, datetime]:
    assert schedule.next_at is not None
    calendar = calendar_of(schedule.cron, schedule.time_zone)
    due = list_due_instants(calendar, schedule.next_at, now=now)
    return {guid_of(schedule.name, at): at for at in due}


def _fire(schedules: Sequence[Schedule], owner: User, now: datetime) -> int:
    ids = [schedule.pk for schedule in schedules]
    execute(_MARK_ENDED, {"ids": ids, "started": str(Outcome.STARTED)})
    loads = load_loads(ids)
    submitted = _find_unrecorded(schedules, now)
    planned = [
        _plan(schedule, loads.get(schedule.pk, _NO_LOAD), submitted.get(schedule.pk, {}), now)
        for schedule in schedules
    ]
    started = submit_due([job for item in planned for job in item.due()], owner=owner, now=now)
    for item in planned:
        # A refused job replaces none.
        if item.plan.replaces and any(started[job.key].job_id is not None for job in item.due()):
            _cancel_jobs(item.schedule, item.replaced_jobs, owner, now)
    return _record(planned, started, now)


def _find_unrecorded(
    schedules: Sequence[Schedule], now: datetime
) -> Mapping[int, Mapping[datetime, InstantJob]]:
    """Return by schedule the jobs of due instants that a process submitted before it died.

    A single instant that is on time has the same outcome as before.
    """
    guids: dict[tuple[int, str], tuple[int, datetime]] = {}
    for schedule in schedules:
        assert schedule.next_at is not None
        due = _due_guids(schedule, now)
        if len(due) > 1 or now - schedule.next_at > timedelta(seconds=LATE_SECONDS):
            guids |= {(schedule.project_id, guid): (schedule.pk, at) for guid, at in due.items()}
    found: dict[int, dict[datetime, InstantJob]] = {}
    for key, job in find_submitted(guids).items():
        schedule_id, at = guids[key]
        found.setdefault(schedule_id, {})[at] = job
    return found


def _plan(
    schedule: Schedule,
    load: ScheduleLoad,
    submitted: Mapping[datetime, InstantJob],
    now: datetime,
) -> _PlannedSchedule:
    assert schedule.next_at is not None
    facts = ScheduleFacts(
        calendar=calendar_of(schedule.cron, schedule.time_zone),
        catch_up=CatchUp(schedule.catch_up),
        overlap=Overlap(schedule.overlap),
        next_at=schedule.next_at,
        has_open_job=bool(load.open_jobs),
        waiting=load.waiting,
        submitted={at: job.is_open for at, job in submitted.items()},
    )
    return _PlannedSchedule(schedule, plan_firings(facts, now=now), load, submitted)


def _cancel_jobs(schedule: Schedule, job_ids: Iterable[int], owner: User, now: datetime) -> None:
    reason = f"schedule {schedule.name}: the next instant replaces it"
    for job_id in job_ids:
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
            refused = {key[1] for key in keys if key in started and started[key].refusal}
            for key, firing in zip(keys, item.plan.outcomes(refused), strict=True):
                # A changed schedule has other instants, but these jobs exist.
                if is_same or (key in started and started[key].job_id is not None):
                    made.append(_row(schedule, firing, started.get(key), now))
            advanced += [item] * is_same
        _insert(made)
        report_refusals([it.schedule for it in made if _is_decided(it)], now=now)
        values = [(item.schedule.pk, item.plan.next_at) for item in advanced]
        if values:
            execute(_ADVANCE, [list(column) for column in zip(*values, strict=True)])
    return len(made)


def _start_waiting(
    schedules: Sequence[Schedule], instants: Mapping[int, datetime], owner: User, now: datetime
) -> set[int]:
    """Submit the jobs of waiting instants; return the schedules whose instant does not wait now."""
    due = [DueJob(schedule, instants[schedule.pk]) for schedule in schedules]
    started = submit_due(due, owner=owner, now=now)
    decided = set[int]()
    for (schedule_id, at), one in started.items():
        if one.is_postponed:
            continue
        outcome = Outcome.STARTED if one.job_id is not None else Outcome.REFUSED
        waiting = ScheduleFiring.objects.filter(
            schedule_id=schedule_id, at=at, outcome=Outcome.WAITING
        )
        waiting.update(outcome=outcome, text=one.refusal, job_id=one.job_id, fired_at=now)
        decided.add(schedule_id)
    report_refusals([schedule for schedule in schedules if schedule.pk in decided], now=now)
    return decided


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


def _is_decided(firing: ScheduleFiring) -> bool:
    return firing.outcome in (Outcome.STARTED, Outcome.REFUSED)


def _insert(made: Sequence[ScheduleFiring]) -> None:
    # A concurrent tick has recorded the same instants.
    ScheduleFiring.objects.bulk_create(made, ignore_conflicts=True)


def _by_owner(schedules: Iterable[Schedule]) -> Iterable[tuple[User, list[Schedule]]]:
    ordered = sorted(schedules, key=lambda schedule: schedule.owner_id)
    for _, found in groupby(ordered, key=lambda schedule: schedule.owner_id):
        listed = list(found)
        yield listed[0].owner, listed
