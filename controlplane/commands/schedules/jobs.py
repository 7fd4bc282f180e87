"""Submit the jobs of schedules, each once: the guid is made of the name and the instant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from django.contrib.auth.models import User
from django.db import OperationalError

from controlplane.commands.jobs.submit import Submission, SubmissionsSuspended, submit_jobs
from controlplane.domain.errors import CellrunError
from controlplane.domain.hooks.interface import HookUnavailable
from controlplane.domain.roles import Access, Permission, Place, may
from controlplane.models import Schedule
from controlplane.queries.jobs.submission import find_guids
from controlplane.queries.tenancy.access import load_access
from controlplane.queries.tenancy.accounts import session_credential
from controlplane.spec import InvalidSpec, JobSpec, parse_job

log = structlog.get_logger(__name__)

LABEL = "schedule"
"""The label of the jobs of a schedule, whose value is its name."""

POSTPONED = (SubmissionsSuspended, HookUnavailable)
"""Causes that pass: the instant is processed again."""


@dataclass(frozen=True, slots=True)
class DueJob:
    """The job of a schedule at an instant. `replaced`: jobs that are cancelled once it exists."""

    schedule: Schedule
    at: datetime
    replaced: Sequence[int] = ()

    @property
    def key(self) -> tuple[int, datetime]:
        """Return the id of the schedule and the instant."""
        return self.schedule.pk, self.at

    @property
    def guid(self) -> str:
        """Return the guid of the job, which no other instant has."""
        return guid_of(self.schedule.name, self.at)


@dataclass(frozen=True, slots=True)
class _PreparedJob:
    due: DueJob
    spec: JobSpec
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartedJob:
    """The id of the job, or the text of a refusal. Neither: the cause passes."""

    job_id: int | None = None
    refusal: str = ""

    @property
    def is_postponed(self) -> bool:
        """Return whether the instant is processed again."""
        return self.job_id is None and not self.refusal


def guid_of(name: str, at: datetime) -> str:
    """Return the guid of the job of an instant, such as nightly/2031-05-04T02:30:00Z."""
    instant = at.astimezone(UTC)
    return f"{name}/{instant:%Y-%m-%dT%H:%M:%S}{f'.{instant:%f}' if instant.microsecond else ''}Z"


def body_of(schedule: Schedule, at: datetime) -> dict[str, Any]:
    """Return the document of the job of an instant."""
    labels = {**schedule.job.get("labels", {}), LABEL: schedule.name}
    project = schedule.project
    return {
        **schedule.job,
        "labels": labels,
        "guid": guid_of(schedule.name, at),
        "domain": project.domain.name,
        "project": project.name,
    }


def submit_due(
    due: Sequence[DueJob], *, owner: User, now: datetime
) -> Mapping[tuple[int, datetime], StartedJob]:
    """Submit the jobs of schedules of one owner; return by (schedule id, instant) what started.

    A job that was submitted before its firing was recorded is found by its guid.
    """
    found = find_guids([(job.schedule.project_id, job.guid) for job in due])
    access = load_access(session_credential(owner)) if owner.is_active else None
    results: dict[tuple[int, datetime], StartedJob] = {}
    prepared: list[_PreparedJob] = []
    for job in due:
        key = job.key
        existing = found.get((job.schedule.project_id, job.guid))
        if existing is not None:
            results[key] = StartedJob(existing.job_id)
        elif refusal := refuse_owner(job.schedule, access):
            results[key] = StartedJob(refusal=refusal)
        else:
            body = body_of(job.schedule, job.at)
            try:
                prepared.append(_PreparedJob(job, parse_job(body), body))
            except InvalidSpec as error:
                results[key] = StartedJob(refusal=_shorten(error))
    for item, one in zip(prepared, _submit(prepared, owner, now), strict=True):
        results[item.due.key] = one
    return results


def refuse_owner(schedule: Schedule, access: Access | None) -> str:
    """Return why the owner may not submit the job; empty if the owner may."""
    name = schedule.owner.get_username()
    if access is None:
        return f"user {name} is deactivated"
    place = Place(schedule.project_id, schedule.project.domain_id)
    if not may(access, Permission.SUBMIT, place):
        return f"user {name} may not submit to the project any more"
    return ""


def _submit(jobs: Sequence[_PreparedJob], owner: User, now: datetime) -> list[StartedJob]:
    """Submit all jobs in one transaction, or, if one of them is refused, each in its own."""
    try:
        made = _submit_all(jobs, owner, now)
    except OperationalError:
        raise
    except Exception:  # each by itself, so that only those at fault are refused
        return [_submit_one(job, owner, now) for job in jobs]
    return [StartedJob(submission.job_id) for submission in made]


def _submit_one(job: _PreparedJob, owner: User, now: datetime) -> StartedJob:
    try:
        [made] = _submit_all([job], owner, now)
    except POSTPONED:
        return StartedJob()
    except (CellrunError, InvalidSpec) as error:
        return StartedJob(refusal=_shorten(error))
    except OperationalError:
        raise
    except Exception as error:  # one poisoned document must not stop the other schedules
        log.exception("schedule_refused", guid=job.due.guid)
        return StartedJob(refusal=f"internal error: {_shorten(error)}")
    return StartedJob(made.job_id)


def _submit_all(jobs: Sequence[_PreparedJob], owner: User, now: datetime) -> list[Submission]:
    if not jobs:
        return []
    return submit_jobs(
        specs=[job.spec for job in jobs],
        bodies=[job.body for job in jobs],
        owner=owner,
        now=now,
        leaving={job_id for job in jobs for job_id in job.due.replaced},
    )


def _shorten(error: Exception) -> str:
    return str(error)[:1000] or "the job is refused"
