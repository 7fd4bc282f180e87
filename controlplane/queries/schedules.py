"""Load schedules: those that are due, and the documents of the API."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Access, Permission, Place, may
from controlplane.domain.schedules.firing import Outcome
from controlplane.models import Job, Schedule, ScheduleFiring
from controlplane.queries.sql import rows

DUE_SCHEDULES = "FROM controlplane_schedule s WHERE s.next_at <= %(now)s"

_OPEN = f"""
    SELECT FROM controlplane_schedulefiring o
    JOIN controlplane_job j ON j.id = o.job_id AND j.finished_at IS NULL AND j.deleted_at IS NULL
    WHERE o.schedule_id = f.schedule_id AND o.outcome = '{Outcome.STARTED}' AND NOT o.is_ended
"""

READY_FIRINGS = f"""
    FROM controlplane_schedulefiring f JOIN controlplane_schedule s ON s.id = f.schedule_id
    WHERE f.outcome = '{Outcome.WAITING}' AND NOT s.is_paused AND NOT EXISTS ({_OPEN})
"""
"""Instants in queues of schedules without an unfinished job."""


@dataclass(frozen=True, slots=True)
class ScheduleLoad:
    """The unfinished jobs of a schedule, and the number of instants in its queue."""

    open_jobs: Sequence[int] = field(default=())
    waiting: int = 0


def list_due(now: datetime, limit: int, *, but: Collection[int]) -> list[Schedule]:
    """Return due schedules, the longest due first, with owners and projects; not those in `but`."""
    found = rows(
        f"SELECT s.id {DUE_SCHEDULES} AND s.id <> ALL(%(but)s::bigint[])"
        " ORDER BY s.next_at, s.id LIMIT %(limit)s",
        {"now": now, "limit": limit, "but": list(but)},
    )
    return _load([schedule_id for (schedule_id,) in found])


def list_ready(limit: int, *, but: Collection[int]) -> list[tuple[Schedule, datetime]]:
    """Return the first waiting instant of each queue whose next job may start."""
    found = rows(
        f"SELECT f.schedule_id, min(f.at) {READY_FIRINGS}"
        " AND f.schedule_id <> ALL(%(but)s::bigint[])"
        " GROUP BY f.schedule_id ORDER BY 2, 1 LIMIT %(limit)s",
        {"limit": limit, "but": list(but)},
    )
    instants = dict(found)
    return [(schedule, instants[schedule.pk]) for schedule in _load(list(instants))]


@dataclass(frozen=True, slots=True)
class InstantJob:
    """The job of an instant. `is_open`: it has not finished."""

    job_id: int
    is_open: bool


def find_submitted(guids: Collection[tuple[int, str]]) -> dict[tuple[int, str], InstantJob]:
    """Return the jobs with one of `guids` (project id, guid)."""
    if not guids:
        return {}
    found = rows(
        """
        SELECT project_id, guid, id, finished_at IS NULL FROM controlplane_job
        WHERE (project_id, guid) IN (SELECT * FROM unnest(%s::bigint[], %s::text[]))
          AND deleted_at IS NULL
        """,
        [[project for project, _ in guids], [guid for _, guid in guids]],
    )
    return {
        (project_id, guid): InstantJob(job_id, is_open)
        for project_id, guid, job_id, is_open in found
    }


def load_loads(schedule_ids: Sequence[int]) -> Mapping[int, ScheduleLoad]:
    """Return the unfinished jobs and the queue of each schedule that has some."""
    found = rows(
        """
        SELECT schedule_id,
               coalesce(array_agg(job_id) FILTER (WHERE outcome = %(started)s), '{}'),
               count(*) FILTER (WHERE outcome = %(waiting)s)
        FROM controlplane_schedulefiring
        WHERE schedule_id = ANY(%(ids)s)
          AND (outcome = %(started)s AND NOT is_ended OR outcome = %(waiting)s)
        GROUP BY schedule_id
        """,
        {
            "ids": list(schedule_ids),
            "started": str(Outcome.STARTED),
            "waiting": str(Outcome.WAITING),
        },
    )
    return {key: ScheduleLoad(tuple(jobs), waiting) for key, jobs, waiting in found}


def load_latest(schedule_ids: Collection[int], limit: int) -> dict[int, list[tuple[Outcome, str]]]:
    """Return outcome and text of the last jobs that started or were refused, newest first."""
    found = rows(
        """
        SELECT s.id, f.outcome, f.text FROM unnest(%s::bigint[]) AS s (id)
        CROSS JOIN LATERAL (
            SELECT outcome, text, at FROM controlplane_schedulefiring
            WHERE schedule_id = s.id AND outcome = ANY(%s) ORDER BY at DESC LIMIT %s
        ) f ORDER BY s.id, f.at DESC
        """,
        [sorted(schedule_ids), [str(Outcome.STARTED), str(Outcome.REFUSED)], limit],
    )
    latest: dict[int, list[tuple[Outcome, str]]] = {}
    for schedule_id, outcome, text in found:
        latest.setdefault(schedule_id, []).append((Outcome(outcome), text))
    return latest


def place_of(schedule: Schedule) -> Place:
    """Return the place of a schedule; its owner is that of its jobs."""
    return Place(schedule.project_id, schedule.project.domain_id, schedule.owner_id)


def find_schedule(project_id: int, name: str) -> Schedule:
    """Return a schedule with its owner and its project. Raise NotFound."""
    found = _described().filter(project_id=project_id, name=name).first()
    if found is None:
        raise NotFound(f"the project has no schedule {name}")
    return found


def list_schedules(
    access: Access, project_id: int, *, after: str | None, limit: int
) -> list[dict[str, Any]]:
    """Return a project's schedules by name."""
    found = _described().filter(project_id=project_id, name__gt=after or "").order_by("name")
    return [describe_schedule(schedule, access) for schedule in found[:limit]]


def describe_schedule(schedule: Schedule, access: Access) -> dict[str, Any]:
    """Return the document. Only callers who may change the schedule get its job."""
    may_change = may(access, Permission.CHANGE, place_of(schedule))
    return {
        "name": schedule.name,
        "project": f"{schedule.project.domain.name}/{schedule.project.name}",
        "owner": schedule.owner.get_username(),
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
        "paused": schedule.is_paused,
        "paused_because": schedule.paused_because,
        "next_at": schedule.next_at,
        "created_at": schedule.created_at,
        "updated_at": schedule.updated_at,
        "job": schedule.job if may_change else None,
    }


def list_firings(
    schedule_id: int, *, before: int | None = None, limit: int
) -> list[dict[str, Any]]:
    """Return what became of the instants, the latest processed first."""
    found = ScheduleFiring.objects.filter(schedule_id=schedule_id)
    if before is not None:
        found = found.filter(pk__lt=before)
    return [
        {
            "id": firing.pk,
            "at": firing.at,
            "fired_at": firing.fired_at,
            "outcome": firing.outcome,
            "text": firing.text,
            "job": firing.job_id,
        }
        for firing in found.order_by("-pk")[:limit]
    ]


def read_guid(guid: str | None, labels: Mapping[str, str]) -> tuple[str, datetime] | None:
    """Return the schedule and the instant that guid and label of a job name; None: they do not.

    Any user may give a job both, so that only the history proves them.
    """
    name, _, instant = (guid or "").partition("/")
    if not instant or labels.get("schedule") != name:
        return None
    try:
        at = datetime.fromisoformat(instant)
    except ValueError:
        return None
    return None if at.tzinfo is None else (name, at)


def find_instants(
    jobs: Iterable[tuple[int, str | None, Mapping[str, str]]],
) -> dict[int, dict[str, Any]]:
    """Return by job the schedule and the instant that started it; `jobs`: id, guid, labels."""
    named = [(job_id, read_guid(guid, labels)) for job_id, guid, labels in jobs]
    requested = [(job_id, *instant) for job_id, instant in named if instant is not None]
    if not requested:
        return {}
    found = rows(
        """
        SELECT j.id, s.name, f.at
        FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[]) AS w (job_id, name, at)
        JOIN controlplane_job j ON j.id = w.job_id
        JOIN controlplane_schedule s ON s.project_id = j.project_id AND s.name = w.name
        JOIN controlplane_schedulefiring f
          ON f.schedule_id = s.id AND f.at = w.at AND f.job_id = j.id
        """,
        [list(column) for column in zip(*requested, strict=True)],
    )
    return {job_id: {"name": name, "at": at} for job_id, name, at in found}


def find_instant_of(job_id: int) -> dict[str, Any] | None:
    """Return the schedule and the instant that started the job; None for other jobs."""
    found = Job.objects.filter(pk=job_id).values_list("pk", "guid", "labels")
    return find_instants(found).get(job_id)


def find_instant(job: Job) -> ScheduleFiring | None:
    """Return the instant that started the job, with its schedule; None for other jobs."""
    named = read_guid(job.guid, job.labels)
    if named is None:
        return None
    name, at = named
    found = ScheduleFiring.objects.select_related("schedule").filter(
        schedule__project_id=job.project_id, schedule__name=name, at=at, job_id=job.pk
    )
    return found.first()


def _described() -> Any:
    return Schedule.objects.select_related("owner", "project__domain")


def _load(schedule_ids: Sequence[int]) -> list[Schedule]:
    found = {schedule.pk: schedule for schedule in _described().filter(pk__in=schedule_ids)}
    return [found[key] for key in schedule_ids if key in found]
