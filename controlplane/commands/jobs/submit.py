"""Submission: load the facts, validate the jobs, insert all jobs of a call or none.

A second submission with the same guid and body returns the same job.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.hooks.registry import PreparationHooks
from controlplane.commands.jobs.cap import check_cap
from controlplane.commands.jobs.concurrency import lock_keys_of, resolve_keys
from controlplane.commands.jobs.insert import insert_jobs
from controlplane.commands.jobs.links import check_links, link_jobs
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.commands.tenancy.stored_bytes import record_inputs
from controlplane.domain.errors import CellrunError
from controlplane.domain.jobs.admission import admit, find_existing, judge_names
from controlplane.domain.jobs.concurrency import may_conflict
from controlplane.domain.jobs.submission import PlannedJob
from controlplane.outbox import wakes
from controlplane.queries.jobs.submission import (
    find_guids,
    find_settling_named,
    find_unfinished_named,
    load_submission_facts,
)
from controlplane.spec import JobSpec
from controlplane.storage.current import current_store
from controlplane.storage.interface import StoreFull


class SubmissionsSuspended(CellrunError):
    """The store has too little free space for the files of new jobs."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The result of one submitted job. `created`: False if the job existed already."""

    job_id: int
    created: bool


def submit_jobs(
    *,
    specs: Sequence[JobSpec],
    bodies: Sequence[Mapping[str, Any]],
    owner: User,
    now: datetime,
    leaving: Collection[int] = (),
) -> list[Submission]:
    """Create the jobs `specs`, submitted as `bodies`, for `owner`; return the result of each.

    `leaving`: jobs that the caller cancels next, so that they do not use up a concurrency key.
    Raise JobsRefused, GuidTaken, NameTaken, ConcurrencyKeyFull, SubmissionsSuspended; then nothing
    was created.
    """
    facts = load_submission_facts(specs, owner_id=owner.pk, now=now)
    admission = admit(specs, bodies, facts, PreparationHooks())
    planned, existing = admission.planned, admission.existing
    if planned:
        check_store()
    created: dict[int, int] = {}
    if planned:
        created, named = run_in_transaction(lambda: _insert(planned, owner, now, leaving))
        existing |= named
    # Another submission inserted the same guid first.
    existing |= find_submitted([job for job in planned if job.position not in created | existing])
    found = created | existing
    return [
        Submission(found[admission.repeats.get(position, position)], position in created)
        for position in range(len(specs))
    ]


def check_store() -> None:
    """Check that the store has space for new jobs. Raise SubmissionsSuspended."""
    try:
        current_store().check_space()
    except StoreFull as error:
        raise SubmissionsSuspended(f"no jobs are accepted now: {error}") from None


def find_submitted(jobs: Sequence[PlannedJob]) -> dict[int, int]:
    """Return the ids of the existing jobs among `jobs`, by position. Raise GuidTaken."""
    guids = [(job.project_id, job.spec.guid) for job in jobs if job.spec.guid is not None]
    return find_existing(jobs, find_guids(guids))


def has_contents(jobs: Iterable[PlannedJob]) -> bool:
    """Return whether any job has inputs to store."""
    return any(group.contents for job in jobs for group in job.groups)


def put_inputs(jobs: Iterable[PlannedJob]) -> None:
    """Store the contents of the jobs' inputs under their digests, and count them.

    Call it in the transaction that inserts the jobs, after the checks that may refuse them: an
    input of a refused job would stay in the store.
    """
    sizes = []
    for job in jobs:
        contents = job.contents()
        for content in contents.values():
            current_store().put_input(content)
        sizes.append((job.job_id, job.project_id, sum(map(len, contents.values()))))
    record_inputs(sizes)


def _insert(
    jobs: Sequence[PlannedJob], owner: User, now: datetime, leaving: Collection[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Insert the jobs with their links, in a transaction that locks the owner.

    Return by position the created jobs, and the existing jobs that are returned by name.
    """
    check_cap(owner.pk, jobs)
    existing, replaced = resolve_names(owner.pk, jobs)
    new = [job for job in jobs if job.position not in existing]
    lock_keys_of(new)
    by_key = resolve_keys(_unsubmitted(new), {*leaving}.union(*replaced.values()))
    inserted = insert_jobs(new, actor=owner.get_username(), now=now)
    admitted = [job for job in new if job.job_id in inserted]
    if has_contents(admitted):
        check_links(admitted, replaced)
        # Before `link_jobs`, whose locks on other jobs must not wait for the store.
        put_inputs(admitted)
    link_jobs(admitted, replaced, by_key, now=now)
    entries = [describe_submission(Action.SUBMIT_JOB, job) for job in admitted]
    record(*entries, actor=owner.get_username(), now=now)
    if inserted:
        transaction.on_commit(wakes.wake_placement, robust=True)
    if any(group.cache for job in new for group in job.groups):
        transaction.on_commit(wakes.wake_convergence, robust=True)
    return {job.position: job.job_id for job in new if job.job_id in inserted}, existing


def _unsubmitted(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Return the jobs that no other submission has inserted since the facts were loaded.

    The same job, submitted twice at once, must not be refused for the key that it holds itself.
    Raise GuidTaken.
    """
    known = find_submitted(jobs) if any(map(may_conflict, jobs)) else {}
    return [job for job in jobs if job.position not in known]


def describe_submission(action: Action, job: PlannedJob, subject: str = "") -> AuditEntry:
    """Return the audit entry of a new job, without its document, which may contain passwords."""
    tasks = sum(len(group.indices) for group in job.groups)
    after = {"name": job.spec.name, "tasks": tasks}
    return AuditEntry(
        action, subject or f"job {job.job_id}", project_id=job.project_id, after=after
    )


def resolve_names(
    owner_id: int, jobs: Sequence[PlannedJob]
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the result of `judge_names`, which the lock on the owner keeps valid.

    Raise JobsRefused, NameTaken.
    """
    policies = [job.spec.existing_job_policy for job in jobs]
    if not any(policies):
        return {}, {}
    names = [(job.project_id, job.spec.name) for job in jobs]
    replacing = [name for name, policy in zip(names, policies, strict=True) if policy == "replace"]
    unfinished = find_unfinished_named(owner_id, names)
    return judge_names(jobs, unfinished, find_settling_named(owner_id, replacing))
