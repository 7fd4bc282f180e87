"""Submission: all jobs of a call are taken, or none; the same guid and body, the same job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.hooks.registry import (
    SUBMISSION_TOO_SLOW,
    describe_unknown,
    find_hook,
    is_over,
    start_preparing,
)
from controlplane.commands.jobs.admission import AdmissionRequest, check_hosts, check_sizes
from controlplane.commands.jobs.insert import PlannedJob, insert_jobs
from controlplane.commands.jobs.links import link_jobs
from controlplane.commands.jobs.secret_checks import check_secrets
from controlplane.commands.jobs.user_limits import check_cap
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.hooks.preparing import prepare_job
from controlplane.domain.jobs.submission import (
    GuidTaken,
    JobsRefused,
    NameTaken,
    digest_of,
    plan_groups,
    waits_for_jobs,
)
from controlplane.outbox import wakes
from controlplane.queries.jobs.submission import (
    find_domains,
    find_guids,
    find_pools,
    find_projects,
    find_settling_named,
    find_unfinished_named,
)
from controlplane.spec import Fault, JobSpec
from controlplane.storage import store


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of one submitted job. Not `created`: it was there already."""

    job_id: int
    created: bool


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """Jobs that may be taken. `known`: ids of those that are there already, by position.

    `fresh`, `planned`: the others, each once, as asked for and as they would be written.
    """

    asked: Sequence[AdmissionRequest]
    known: dict[int, int]
    fresh: Sequence[AdmissionRequest]
    planned: Sequence[PlannedJob]


def submit_jobs(
    *, specs: Sequence[JobSpec], bodies: Sequence[Mapping[str, Any]], owner: User, now: datetime
) -> list[Submission]:
    """Take the jobs `specs`, submitted as `bodies`, for `owner`; one Submission each, in order.

    Raises JobsRefused, GuidTaken, NameTaken; then nothing was created.
    """
    judged = judge_jobs(specs=specs, bodies=bodies, owner=owner, now=now)
    asked, known, fresh, planned = judged.asked, judged.known, judged.fresh, judged.planned
    for job in planned:
        for group in job.groups:
            for content in group.contents.values():
                store.put_input(content)

    def insert() -> tuple[set[int], dict[int, int]]:
        kept: dict[int, int] = {}
        if not planned:
            return set(), kept
        check_cap(owner.pk, [tasks_of(job) for job in fresh])
        replaced = look_for_names(owner, fresh, kept)
        taken = [job for job in planned if job.position not in kept]
        inserted = set(insert_jobs(taken, actor=owner.get_username(), now=now))
        link_jobs([job for job in taken if job.job_id in inserted], replaced, now=now)
        if inserted:
            transaction.on_commit(wakes.wake_placement, robust=True)
        return inserted, kept

    inserted, kept = run_in_transaction(insert)
    by_position = {job.position: job.job_id for job in planned if job.job_id in inserted}
    known |= kept
    if len(by_position) + len(known) < len(asked):
        # Repeats within this call, and those that another call was faster with.
        known |= _find_known([job for job in asked if job.position not in by_position])
    return [
        Submission(by_position[job.position], True)
        if job.position in by_position
        else Submission(known[job.position], False)
        for job in asked
    ]


def judge_jobs(
    *, specs: Sequence[JobSpec], bodies: Sequence[Mapping[str, Any]], owner: User, now: datetime
) -> AdmissionResult:
    """Check the jobs before anything is locked or written.

    Raise JobsRefused, GuidTaken.
    """
    asked = _resolve(specs, bodies)
    known = _find_known(asked)
    fresh = _prepare(_without_repeats([job for job in asked if job.position not in known]))
    try:
        check_hosts(fresh)
        check_sizes(fresh, owner_id=owner.pk, now=now)
        check_secrets(fresh)
    except JobsRefused as refused:
        by_position = {job.position: job for job in fresh}
        raise JobsRefused(
            [(at, by_position[at].name_kind(fault)) for at, fault in refused.faults]
        ) from None
    return AdmissionResult(asked, known, fresh, [_plan(job, owner, now) for job in fresh])


def look_for_names(
    owner: User, asked: Sequence[AdmissionRequest], kept: dict[int, int]
) -> dict[int, list[int]]:
    """What to replace, by position; fills `kept`. The lock on the owner keeps this true.

    Raises JobsRefused, NameTaken.
    """
    choosy = [job for job in asked if job.spec.existing_job_policy is not None]
    if not choosy:
        return {}
    first = {}
    for job in reversed(asked):
        first[job.project_id, job.spec.name] = job.position
    named = find_unfinished_named(owner.pk, first)
    # A job that was cancelled just now is not replaced any more, but it still has containers.
    settling = find_settling_named(
        owner.pk,
        {
            (job.project_id, job.spec.name)
            for job in choosy
            if job.spec.existing_job_policy == "replace"
        },
    )
    replaced = {}
    for job in choosy:
        key = job.project_id, job.spec.name
        if first[key] != job.position:
            text = f"{job.spec.name} is the name of another job of this submission, too"
            raise JobsRefused([(job.position, Fault("name", text))])
        existing = named.get(key, [])
        match job.spec.existing_job_policy:
            case "error" if existing:
                raise NameTaken(job.position, job.spec.name, existing[-1])
            case "keep" if existing:
                kept[job.position] = existing[-1]
            case "replace":
                replaced[job.position] = existing + settling.get(key, [])
    return replaced


def _resolve(
    specs: Sequence[JobSpec], bodies: Sequence[Mapping[str, Any]]
) -> list[AdmissionRequest]:
    pools = find_pools(spec.pool for spec in specs)
    projects = find_projects((spec.domain, spec.project) for spec in specs)
    asked: list[AdmissionRequest] = []
    faults: list[tuple[int, Fault]] = []
    for position, (spec, body) in enumerate(zip(specs, bodies, strict=True)):
        pool, keys = pools.get(spec.pool), projects.get((spec.domain, spec.project))
        if pool is None:
            faults.append((position, Fault("pool", f"there is no pool {spec.pool}")))
        if keys is None:
            faults.append((position, _unknown_project(spec)))
        if pool is not None and keys is not None:
            text, digest = digest_of(body)
            asked.append(AdmissionRequest(position, spec, body, text, digest, *keys, pool))
    if faults:
        raise JobsRefused(faults)
    return asked


def _unknown_project(spec: JobSpec) -> Fault:
    if not find_domains([spec.domain]):
        return Fault("domain", f"there is no domain {spec.domain}")
    return Fault("project", f"there is no project {spec.project} in domain {spec.domain}")


def _find_known(asked: Sequence[AdmissionRequest]) -> dict[int, int]:
    """Ids of the jobs among `asked` that are there already, by position. Raises GuidTaken."""
    keyed = {
        job.position: (job.project_id, job.spec.guid) for job in asked if job.spec.guid is not None
    }
    found = find_guids(list(keyed.values()))
    known: dict[int, int] = {}
    for job in asked:
        there = found.get(keyed[job.position]) if job.position in keyed else None
        if there is None:
            continue
        if there.spec_digest != job.digest:
            raise GuidTaken(job.position, str(job.spec.guid), there.job_id)
        known[job.position] = there.job_id
    return known


def _without_repeats(asked: Sequence[AdmissionRequest]) -> list[AdmissionRequest]:
    """The first of those that have the same guid. Raises GuidTaken if they differ."""
    first: dict[tuple[int, str], AdmissionRequest] = {}
    kept = []
    for job in asked:
        if job.spec.guid is None:
            kept.append(job)
            continue
        other = first.setdefault((job.project_id, job.spec.guid), job)
        if other is job:
            kept.append(job)
        elif other.digest != job.digest:
            raise GuidTaken(job.position, job.spec.guid, None)
    return kept


def _prepare(asked: Sequence[AdmissionRequest]) -> list[AdmissionRequest]:
    """The jobs as their kinds schedule them. Raises JobsRefused."""
    prepared: list[AdmissionRequest] = []
    faults: list[tuple[int, Fault]] = []
    ends_at = start_preparing()
    for job in asked:
        hook = find_hook(job.spec.kind, ends_at=ends_at)
        if hook is None:
            faults.append((job.position, Fault("kind", describe_unknown(job.spec.kind))))
            continue
        if is_over(ends_at):
            faults.append((job.position, Fault("kind", SUBMISSION_TOO_SLOW)))
            break
        found = prepare_job(job.spec, hook, is_short=job.is_short)
        faults += [(job.position, fault) for fault in found.faults]
        prepared.append(replace(job, spec=found.spec, prepared=found))
    if faults:
        raise JobsRefused(faults)
    return prepared


def tasks_of(job: AdmissionRequest) -> tuple[int, str, int]:
    """Return how many tasks the job would add: (position, field that sets the number, tasks)."""
    field = "groups" if "groups" in job.body else "replicas"
    return job.position, field, job.spec.total_replicas()


def _plan(job: AdmissionRequest, owner: User, now: datetime) -> PlannedJob:
    timeout = job.spec.scheduling_timeout_seconds
    return PlannedJob(
        position=job.position,
        spec=job.spec,
        text=job.text,
        digest=job.digest,
        project_id=job.project_id,
        pool_id=job.pool.pk,
        owner_id=owner.pk,
        min_available=job.spec.minimum(),
        max_task_failures=job.spec.tolerated_failures(),
        waits_for_jobs=waits_for_jobs(job.spec),
        timeout_seconds=timeout,
        groups=plan_groups(job.spec, now=now, timeout_seconds=timeout, changes=job.changes),
    )
