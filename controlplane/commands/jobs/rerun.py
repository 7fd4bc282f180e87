"""Retry of a job: its tasks that did not succeed become a new one, once nothing of it is left."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

import structlog
from django.db import transaction

from controlplane.commands.hooks.registry import describe_unknown, find_hook, start_preparing
from controlplane.commands.jobs.admission import AdmissionRequest, check_hosts, check_sizes
from controlplane.commands.jobs.insert import PlannedJob, insert_jobs
from controlplane.commands.jobs.links import link_jobs
from controlplane.commands.jobs.secret_checks import check_secrets
from controlplane.commands.jobs.submit import Submission
from controlplane.commands.jobs.user_limits import check_cap
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.hooks.preparing import PreparedJob, prepare_job
from controlplane.domain.jobs.rerun import (
    GroupRemainder,
    RerunDependency,
    carry_over,
    check_retry,
    plan_remainder,
    retried_document,
    retried_spec,
)
from controlplane.domain.jobs.satisfiability import HINT
from controlplane.domain.jobs.submission import (
    GuidTaken,
    JobsRefused,
    PlannedGroup,
    digest_of,
    plan_groups,
    waits_for_jobs,
)
from controlplane.domain.state.effects import Effects
from controlplane.models import Pool
from controlplane.outbox import wakes
from controlplane.queries.jobs.rerun import (
    RetriedJob,
    find_family,
    find_retried,
    is_parent_open,
    load_awaited,
    load_left,
)
from controlplane.queries.jobs.submission import find_guids
from controlplane.queries.locks import lock_jobs
from controlplane.spec import Fault, JobSpec, parse_job
from controlplane.storage import store

# Its faults are named by group.
_LONG_FORM: Mapping[str, Any] = MappingProxyType({"groups": ()})

log = structlog.get_logger(__name__)


def retry_job(*, job_id: int, guid: str | None, actor: str, now: datetime) -> Submission:
    """Make a new job, of the same owner, of the tasks that did not succeed.

    `guid`: of the new job; the same one again, the same retry. Raises NotFound, Conflict,
    GuidTaken, JobsRefused; then nothing was created.
    """
    old = _find(job_id)
    prepared = _prepare(parse_job(dict(old.document)))
    _check(old, prepared, now)
    for group in plan_groups(prepared.spec, now=now, timeout_seconds=None):
        for content in group.contents.values():
            store.put_input(content)
    submission = run_in_transaction(lambda: _retry(_find(job_id), prepared, guid, actor, now))
    if submission.created:
        log.info("job_retried", job=job_id, retry=submission.job_id, by=actor)
    return submission


def _prepare(spec: JobSpec) -> PreparedJob:
    """The job, read as it was submitted, as its kind schedules it now.

    Its hook may have gone since, or refuse what it took then. Raises Conflict.
    """
    hook = find_hook(spec.kind, ends_at=start_preparing())
    if hook is None:
        raise Conflict(describe_unknown(spec.kind))
    prepared = prepare_job(spec, hook, is_short=False)
    if prepared.faults:
        raise Conflict("; ".join(map(str, prepared.faults)))
    return prepared


def _check(old: RetriedJob, prepared: PreparedJob, now: datetime) -> None:
    """Check the job as at a submission, since pool, secrets and hook may have changed meanwhile.

    Sizes are checked if its kind set something: the submitted ones were accepted. Raise Conflict.
    """
    request = AdmissionRequest(
        position=0,
        spec=prepared.spec,
        body=_LONG_FORM,
        text="",
        digest="",
        project_id=old.project_id,
        domain_id=old.domain_id,
        pool=Pool.objects.get(pk=old.pool_id),
        prepared=prepared,
    )
    try:
        check_hosts([request])
        if any(prepared.changes):
            check_sizes([request], owner_id=old.owner_id, now=now)
        check_secrets([request])
    except JobsRefused as refused:
        faults = [
            request.name_kind(Fault(fault.field, fault.detail.removesuffix(HINT)))
            for _, fault in refused.faults
        ]
        raise Conflict("; ".join(map(str, faults))) from None


def _find(job_id: int) -> RetriedJob:
    old = find_retried(job_id)
    if old is None:
        raise NotFound(f"there is no job {job_id}")
    return old


def _retry(
    old: RetriedJob, prepared: PreparedJob, guid: str | None, actor: str, now: datetime
) -> Submission:
    """In a transaction: the user's lock comes first, then those of all jobs, by id."""
    spec = prepared.spec
    check_cap(old.owner_id, ())
    family, awaited = find_family(old.job_id), load_awaited(old.job_id)
    lock_jobs(family | _named(old, awaited))
    # A concurrent retry of one of them held one of these locks; the facts read now stay true.
    family = find_family(old.job_id)
    jobs = lock_jobs(family)
    old = _find(old.job_id)
    digest = _digest_of(old.job_id, guid)
    known = _find_known(old, guid, digest)
    if known is not None:
        return Submission(known, False)
    left = load_left(old.job_id)
    relatives = [job for key, job in sorted(jobs.items()) if key != old.job_id]
    check_retry(jobs[old.job_id], spec, left, relatives)
    parent = old.parent_id if is_parent_open(old.parent_id) else None
    depends_on = carry_over(old.job_id, load_awaited(old.job_id))
    new_spec = retried_spec(spec, guid=guid, depends_on=depends_on, parent=parent)
    text = json.dumps(retried_document(old.document, new_spec))
    job = _plan(old, replace(prepared, spec=new_spec), left, text, digest, now)
    check_cap(old.owner_id, [(0, "", sum(len(group.indices) for group in job.groups))])
    if not insert_jobs([job], actor=actor, now=now):
        # Retries have these locks: it is a job that was submitted with that guid just now.
        raise Conflict(f"guid {guid} was given to another job meanwhile")
    link_jobs([job], {}, now=now)
    # A group that waits for one without remaining tasks may start: no other event would start it.
    fresh = lock_jobs([job.job_id])
    apply(Effects(derived=[job.job_id]), jobs=fresh, now=now, actor="submission")
    transaction.on_commit(wakes.wake_placement, robust=True)
    return Submission(job.job_id, True)


def _named(old: RetriedJob, awaited: Sequence[RerunDependency]) -> set[int]:
    """Other jobs that the new one may name, locked together with the rest."""
    named = {item.on_job_id for item in awaited if not item.is_met}
    named |= {item.retried_by for item in awaited if item.retried_by is not None}
    return named | ({old.parent_id} if old.parent_id is not None else set())


def _digest_of(job_id: int, guid: str | None) -> str:
    """What makes two calls the same: which job they retry, and as what."""
    return digest_of({"retry_of": job_id, "guid": guid})[1]


def _find_known(old: RetriedJob, guid: str | None, digest: str) -> int | None:
    """The retry that has the guid already. Raises GuidTaken if it is another job."""
    if guid is None:
        return None
    there = find_guids([(old.project_id, guid)]).get((old.project_id, guid))
    if there is None:
        return None
    if there.spec_digest != digest:
        raise GuidTaken(0, guid, there.job_id)
    return there.job_id


def _plan(
    old: RetriedJob,
    prepared: PreparedJob,
    left: Mapping[str, GroupRemainder],
    text: str,
    digest: str,
    now: datetime,
) -> PlannedJob:
    spec = prepared.spec
    timeout = spec.scheduling_timeout_seconds
    groups: list[PlannedGroup] = plan_groups(
        spec, now=now, timeout_seconds=timeout, changes=prepared.changes
    )
    rest = plan_remainder(spec, groups, left, min_available=old.min_available)
    return PlannedJob(
        position=0,
        spec=spec,
        text=text,
        digest=digest,
        project_id=old.project_id,
        pool_id=old.pool_id,
        owner_id=old.owner_id,
        min_available=rest.min_available,
        max_task_failures=rest.max_task_failures,
        waits_for_jobs=waits_for_jobs(spec),
        timeout_seconds=timeout,
        groups=rest.groups,
        retry_of=old.job_id,
    )
