"""Submit a one-off task: a job of one task under a unique guid (Diego: desire)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.jobs.insert import PlannedJob, insert_jobs
from controlplane.commands.jobs.submit import judge_jobs, tasks_of
from controlplane.commands.jobs.user_limits import check_cap
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.jobs.satisfiability import HINT
from controlplane.domain.jobs.submission import JobsRefused, TaskGuidTaken, digest_of
from controlplane.outbox import wakes
from controlplane.queries.jobs.one_offs import find_holder
from controlplane.queries.sql import rows
from controlplane.spec import Fault, InvalidSpec, JobSpec
from controlplane.spec.one_off import TTL_SECONDS, OneOffSpec, fault_of_task
from controlplane.storage import store

log = structlog.get_logger(__name__)


def desire_task(*, wanted: OneOffSpec, body: Mapping[str, Any], owner: User, now: datetime) -> int:
    """Create the one-off task `wanted`, submitted as `body`, for `owner`; return its id.

    Of concurrent requests for one guid one wins, even if all are equal. Raise InvalidSpec,
    TaskGuidTaken; then nothing was created.
    """
    try:
        return _desire(wanted, body, owner, now)
    except JobsRefused as refused:
        # Fields of a job that a task definition must not have.
        faults = [Fault(it.field, it.detail.removesuffix(HINT)) for _, it in refused.faults]
        raise InvalidSpec([fault_of_task(fault) for fault in faults]) from None


def _desire(wanted: OneOffSpec, body: Mapping[str, Any], owner: User, now: datetime) -> int:
    spec = _with_deadline(wanted.job)
    judged = judge_jobs(specs=[spec], bodies=[wanted.document], owner=owner, now=now)
    [asked], [job] = judged.fresh, judged.planned
    job.spec = spec.model_copy(
        update={"guid": wanted.guid, "ttl_seconds_after_finished": TTL_SECONDS}
    )
    job.is_one_off = True
    # No job that is submitted with this guid later is the same.
    _, job.digest = digest_of(body)
    _refuse_taken(job)
    for group in job.groups:
        for content in group.contents.values():
            store.put_input(content)

    def insert() -> int:
        check_cap(owner.pk, [tasks_of(asked)])
        if not insert_jobs([job], actor=owner.get_username(), now=now):
            _refuse_taken(job, is_sure=True)
        made = _insert_one_off(job, wanted.domain)
        if not made:
            _refuse_taken(job, is_sure=True)
        transaction.on_commit(wakes.wake_placement, robust=True)
        [task_id] = made
        return task_id

    task_id = run_in_transaction(insert)
    log.info("task_desired", task=task_id, job=job.job_id, by=owner.get_username())
    return task_id


def _with_deadline(spec: JobSpec) -> JobSpec:
    """Diego: what found no place in half an hour has failed, unless its pool has a timeout."""
    seconds = settings.CELLRUN.one_off_scheduling_seconds
    return spec.model_copy(update={"scheduling_timeout_seconds": seconds})


def _refuse_taken(job: PlannedJob, *, is_sure: bool = False) -> None:
    guid = str(job.spec.guid)
    holder = find_holder(guid, job.project_id)
    if holder is not None or is_sure:
        raise TaskGuidTaken(guid, holder)


def _insert_one_off(job: PlannedJob, domain: str) -> list[int]:
    """The row under its guid; nothing if that was taken meanwhile."""
    found = rows(
        """
        INSERT INTO controlplane_oneoff (task_id, job_id, guid, domain, claimed_by)
        SELECT id, job_id, %s, %s, '' FROM controlplane_task WHERE job_id = %s
        ON CONFLICT (guid) DO NOTHING RETURNING task_id
        """,
        [job.spec.guid, domain, job.job_id],
    )
    return [int(task_id) for (task_id,) in found]
