"""Retry of a settled job: its tasks that did not succeed become the tasks of a new job."""

import json
from collections.abc import Sequence
from datetime import datetime

import structlog
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.hooks.registry import PreparationHooks
from controlplane.commands.jobs.cap import check_cap
from controlplane.commands.jobs.concurrency import lock_keys_of, resolve_keys
from controlplane.commands.jobs.insert import insert_jobs
from controlplane.commands.jobs.links import link_jobs
from controlplane.commands.jobs.submit import (
    Submission,
    check_store,
    find_submitted,
    put_inputs,
)
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.admission import ARCHIVED, RERUN_CHECKS, AdmissionCandidate, judge
from controlplane.domain.jobs.rerun import (
    RerunDependency,
    carry_over,
    check_retry,
    plan_rerun,
    retried_document,
    retried_spec,
)
from controlplane.domain.jobs.submission import JobsRefused, PlannedJob, digest_of
from controlplane.domain.state.effects import Effects
from controlplane.outbox import wakes
from controlplane.queries.jobs.rerun import (
    RetriedJob,
    find_family,
    find_retried,
    is_parent_open,
    load_remainder,
    load_rerun_dependencies,
)
from controlplane.queries.jobs.submission import load_rerun_facts
from controlplane.queries.locks import lock_jobs
from controlplane.spec import parse_job

log = structlog.get_logger(__name__)


def retry_job(*, job_id: int, guid: str | None, actor: str, now: datetime) -> Submission:
    """Create a new job, of the same owner, from the tasks that did not succeed.

    `guid`: of the new job; a call with the same guid returns the same retry. Raise NotFound,
    Conflict, GuidTaken, JobsRefused, ConcurrencyKeyFull, SubmissionsSuspended; then nothing was
    created.
    """
    judged = _judge(_find(job_id), guid, now)
    check_store()
    submission = run_in_transaction(lambda: _retry(_find(job_id), judged, actor, now))
    if submission.created:
        log.info("job_retried", job=job_id, retry=submission.job_id, by=actor)
    return submission


def _judge(old: RetriedJob, guid: str | None, now: datetime) -> PlannedJob:
    """Plan the job again from its submitted document. Raise Conflict.

    Its pool, secrets and hook may have changed since the submission. The digest is that of the
    call: two calls are the same if they retry one job under one guid.
    """
    if old.is_archived:
        raise Conflict(ARCHIVED)
    spec = parse_job(dict(old.document))
    pool, facts = load_rerun_facts(spec, old, now=now)
    candidate = AdmissionCandidate(
        position=0,
        spec=spec,
        is_short=False,
        project_id=old.project_id,
        domain_id=old.domain_id,
        pool=pool,
    )
    try:
        [planned] = judge([candidate], facts, PreparationHooks(), checks=RERUN_CHECKS)
    except JobsRefused as refused:
        raise Conflict(str(refused)) from None
    planned.spec = planned.spec.model_copy(update={"guid": guid})
    _, planned.digest = digest_of({"retry_of": old.job_id, "guid": guid})
    planned.retry_of = old.job_id
    return planned


def _find(job_id: int) -> RetriedJob:
    old = find_retried(job_id)
    if old is None:
        raise NotFound(f"there is no job {job_id}")
    return old


def _retry(old: RetriedJob, judged: PlannedJob, actor: str, now: datetime) -> Submission:
    """Insert the new job, in a transaction: lock the user, its key, then all jobs, by id."""
    check_cap(old.owner_id, ())
    lock_keys_of([judged])
    family, awaited = find_family(old.job_id), load_rerun_dependencies(old.job_id)
    lock_jobs(family | _named(old, awaited))
    # A concurrent retry in the family needs one of these locks: facts read from here on stay true.
    family = find_family(old.job_id)
    jobs = lock_jobs(family)
    old = _find(old.job_id)
    if existing := find_submitted([judged]):
        return Submission(existing[0], False)
    left = load_remainder(old.job_id)
    relatives = [job for key, job in sorted(jobs.items()) if key != old.job_id]
    check_retry(jobs[old.job_id], judged.spec, left, relatives)
    parent = old.parent_id if is_parent_open(old.parent_id) else None
    depends_on = carry_over(old.job_id, load_rerun_dependencies(old.job_id))
    spec = retried_spec(judged.spec, depends_on=depends_on, parent=parent)
    job = plan_rerun(judged, spec, left, min_available=old.min_available, now=now)
    job.text = json.dumps(retried_document(old.document, spec))
    check_cap(old.owner_id, [job])
    by_key = resolve_keys([job], ())
    if not insert_jobs([job], actor=actor, now=now):
        # Retries are excluded by the locks: a concurrent submission has taken the guid.
        raise Conflict(f"guid {spec.guid} was given to another job meanwhile")
    put_inputs([job])
    link_jobs([job], {}, by_key, now=now)
    # A group that depends on one without remaining tasks may start: no other event would start it.
    inserted = lock_jobs([job.job_id])
    apply(Effects(derived=[job.job_id]), jobs=inserted, now=now, actor="submission")
    after = {"retry": job.job_id}
    entry = AuditEntry(
        Action.RETRY_JOB, f"job {old.job_id}", project_id=old.project_id, after=after
    )
    record(entry, actor=actor, now=now)
    transaction.on_commit(wakes.wake_placement, robust=True)
    return Submission(job.job_id, True)


def _named(old: RetriedJob, awaited: Sequence[RerunDependency]) -> set[int]:
    """Return the jobs outside the family that the new job may name."""
    named = {item.on_job_id for item in awaited if not item.is_met}
    named |= {item.retried_by for item in awaited if item.retried_by is not None}
    return named | ({old.parent_id} if old.parent_id is not None else set())
