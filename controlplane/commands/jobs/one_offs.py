"""One-off tasks as in Diego: a job of one task under a unique guid (desire).

A client claims the task before it resolves it, exclusively.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.hooks.registry import PreparationHooks
from controlplane.commands.jobs.cap import check_cap
from controlplane.commands.jobs.insert import insert_jobs
from controlplane.commands.jobs.submit import (
    check_store,
    describe_submission,
    put_inputs,
)
from controlplane.commands.state.apply import hide_jobs
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.admission import admit
from controlplane.domain.jobs.satisfiability import HINT
from controlplane.domain.jobs.submission import (
    JobsRefused,
    PlannedJob,
    TaskGuidTaken,
    digest_of,
)
from controlplane.outbox import wakes
from controlplane.queries.jobs.one_offs import find_holder
from controlplane.queries.jobs.submission import load_submission_facts
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import execute, first_row, rows
from controlplane.queries.views.tasks import is_task
from controlplane.spec import Fault, InvalidSpec
from controlplane.spec.one_off import TTL_SECONDS, OneOffSpec, fault_of_task

_CLAIM = timedelta(seconds=Policy().claim_seconds)

log = structlog.get_logger(__name__)


def desire_task(*, wanted: OneOffSpec, body: Mapping[str, Any], owner: User, now: datetime) -> int:
    """Create the one-off task `wanted`, submitted as `body`, for `owner`; return its id.

    Of concurrent requests for one guid one wins, even if all are equal. Raise InvalidSpec,
    TaskGuidTaken, SubmissionsSuspended; then nothing was created.
    """
    try:
        return _desire(wanted, body, owner, now)
    except JobsRefused as refused:
        # Fields of a job that a task definition must not have.
        faults = [Fault(it.field, it.detail.removesuffix(HINT)) for _, it in refused.faults]
        raise InvalidSpec([fault_of_task(fault) for fault in faults]) from None


def _desire(wanted: OneOffSpec, body: Mapping[str, Any], owner: User, now: datetime) -> int:
    # Diego: a task without a place after half an hour has failed, unless its pool has a timeout.
    seconds = settings.CELLRUN.one_off_scheduling_seconds
    spec = wanted.job.model_copy(update={"scheduling_timeout_seconds": seconds})
    facts = load_submission_facts([spec], owner_id=owner.pk, now=now)
    [job] = admit([spec], [wanted.document], facts, PreparationHooks()).planned
    job.spec = spec.model_copy(
        update={"guid": wanted.guid, "ttl_seconds_after_finished": TTL_SECONDS}
    )
    job.is_one_off = True
    # No job that is submitted with this guid later is the same.
    _, job.digest = digest_of(body)
    _refuse_taken(job)
    check_store()

    def insert() -> int:
        check_cap(owner.pk, [job])
        if not insert_jobs([job], actor=owner.get_username(), now=now):
            _refuse_taken(job, is_sure=True)
        made = _insert_one_off(job, wanted.domain)
        if not made:
            _refuse_taken(job, is_sure=True)
        put_inputs([job])
        entry = describe_submission(Action.SUBMIT_TASK, job, f"task {job.spec.guid}")
        record(entry, actor=owner.get_username(), now=now)
        transaction.on_commit(wakes.wake_placement, robust=True)
        [task_id] = made
        return task_id

    task_id = run_in_transaction(insert)
    log.info("task_desired", task=task_id, job=job.job_id, by=owner.get_username())
    return task_id


def _refuse_taken(job: PlannedJob, *, is_sure: bool = False) -> None:
    guid = str(job.spec.guid)
    holder = find_holder(guid, job.project_id)
    if holder is not None or is_sure:
        raise TaskGuidTaken(guid, holder)


def _insert_one_off(job: PlannedJob, domain: str) -> list[int]:
    """Insert the row with the job's guid; return no id if another task has taken the guid."""
    found = rows(
        """
        INSERT INTO controlplane_oneoff (task_id, job_id, project_id, guid, domain, claimed_by)
        SELECT id, job_id, %s, %s, %s, '' FROM controlplane_task WHERE job_id = %s
        ON CONFLICT (guid, project_id) DO NOTHING RETURNING task_id
        """,
        [job.project_id, job.spec.guid, domain, job.job_id],
    )
    return [int(task_id) for (task_id,) in found]


def claim_task(*, task_id: int, by: str, now: datetime) -> UUID:
    """Turn COMPLETED into RESOLVING and return the claim, exclusively. Raise NotFound, Conflict.

    The claim expires after 30 s (Diego): from then on the task counts as COMPLETED, even before
    convergence clears the claim.
    """
    claim = uuid4()
    with transaction.atomic():
        claimed = first_row(
            """
            UPDATE controlplane_oneoff SET claim = %s, claimed_at = %s, claimed_by = %s
            WHERE task_id = %s AND (claim IS NULL OR claimed_at <= %s) AND EXISTS (
                SELECT 1 FROM controlplane_task t
                WHERE t.id = task_id AND t.finished_at IS NOT NULL)
            RETURNING job_id, guid
            """,
            [claim, now, by[:150], task_id, now - _CLAIM],
        )
        if claimed is not None:
            entry = AuditEntry(Action.CLAIM_TASK, f"task {claimed.guid}", job_id=claimed.job_id)
            record(entry, actor=by, now=now)
            return claim
    held = first_row(
        "SELECT guid, claimed_by FROM controlplane_oneoff WHERE task_id = %s", [task_id]
    )
    if held is None:
        raise _no_one_off(task_id)
    raise Conflict(_not_claimed(held.guid, held.claimed_by))


@dataclass(frozen=True, slots=True)
class TaskClaims:
    """The claims of several tasks, and the reasons of refusals, both by task id."""

    claims: dict[int, UUID]
    refusals: dict[int, str]


def claim_tasks(*, task_ids: Sequence[int], by: str, now: datetime) -> TaskClaims:
    """Claim each task as `claim_task` does; refuse tasks that are locked at this moment."""
    if not task_ids:
        return TaskClaims({}, {})
    wanted = {task_id: uuid4() for task_id in sorted(set(task_ids))}
    claimed = rows(
        """
        WITH held AS MATERIALIZED (
            SELECT o.task_id FROM controlplane_oneoff o
            JOIN controlplane_task t ON t.id = o.task_id AND t.finished_at IS NOT NULL
            WHERE o.task_id = ANY(%(ids)s::bigint[])
              AND (o.claim IS NULL OR o.claimed_at <= %(over)s)
            ORDER BY o.task_id FOR NO KEY UPDATE OF o SKIP LOCKED
        )
        UPDATE controlplane_oneoff o SET claim = i.claim, claimed_at = %(now)s, claimed_by = %(by)s
        FROM held JOIN unnest(%(ids)s::bigint[], %(claims)s::uuid[]) AS i(id, claim)
             ON i.id = held.task_id
        WHERE o.task_id = held.task_id RETURNING o.task_id
        """,
        {
            "ids": list(wanted),
            "claims": list(wanted.values()),
            "over": now - _CLAIM,
            "now": now,
            "by": by[:150],
        },
    )
    claims = {task_id: wanted[task_id] for (task_id,) in claimed}
    others = [task_id for task_id in wanted if task_id not in claims]
    refusals = dict.fromkeys(others, "its task is not there any more")
    if others:
        found = rows(
            "SELECT task_id, guid, claimed_by FROM controlplane_oneoff WHERE task_id = ANY(%s)",
            [others],
        )
        refusals |= {task_id: _not_claimed(guid, by) for task_id, guid, by in found}
    return TaskClaims(claims, refusals)


def _not_claimed(guid: str, claimed_by: str) -> str:
    why = f"is RESOLVING already, by {claimed_by}" if claimed_by else "has not completed"
    return f"task {guid} {why}"


def _no_one_off(task_id: int) -> NotFound | Conflict:
    if is_task(task_id):
        return Conflict(f"task {task_id} is not a one-off task: it is kept, and goes with its job")
    return NotFound(f"there is no task {task_id}")


def check_claim_of_job(*, job_id: int, claim: UUID | None, now: datetime) -> None:
    """Check that the job's task, if it is a one-off task, is RESOLVING by `claim` (required).

    Lock the task's claim until the end of the transaction. Raise Conflict.
    """
    held = first_row(f"{_CLAIMED} WHERE job_id = %s FOR UPDATE", [job_id])
    if held is not None:
        _check_claim(held.guid, held.claim, held.claimed_at, claim, now)
        if claim is None:
            text = f"task {held.guid} is RESOLVING: its job is deleted by that claim alone"
            raise Conflict(text)
    elif claim is not None:
        raise Conflict(f"job {job_id} is not that of a one-off task: it has no claim")


_CLAIMED = "SELECT guid, claim, claimed_at FROM controlplane_oneoff"


def _check_claim(
    guid: str, present: UUID | None, claimed_at: datetime, claim: UUID | None, now: datetime
) -> None:
    if present is None:
        raise Conflict(f"task {guid} is not RESOLVING: claim it first")
    if claim is not None and claim != present:
        raise Conflict(f"task {guid} is RESOLVING by another claim")
    if claimed_at <= now - _CLAIM:
        raise Conflict(f"task {guid} is not RESOLVING any more: its claim has expired")


def release_claim(*, task_id: int, claim: UUID, now: datetime) -> bool:
    """Turn RESOLVING into COMPLETED if the task has this claim; return whether it had.

    The recorded end of an expired claim is the time at which it expired.
    """
    statement = """
        UPDATE controlplane_oneoff SET claim = NULL, claimed_at = NULL, claimed_by = '',
               claim_ended_at = LEAST(%s, claimed_at + %s)
        WHERE task_id = %s AND claim = %s
        """
    return bool(execute(statement, [now, _CLAIM, task_id, claim]))


def delete_resolved_task(
    *, task_id: int, claim: UUID | None, actor: str, why: str, now: datetime
) -> None:
    """Delete a task that is RESOLVING (by `claim`, if given) and free its guid.

    Raise NotFound, Conflict.
    """

    def delete() -> None:
        found = rows("SELECT job_id FROM controlplane_oneoff WHERE task_id = %s", [task_id])
        if not found or not lock_jobs([found[0][0]]):
            raise _no_one_off(task_id)
        held = rows(f"{_CLAIMED} WHERE task_id = %s FOR UPDATE", [task_id])
        if not held:
            raise _no_one_off(task_id)
        guid, present, claimed_at = held[0]
        _check_claim(guid, present, claimed_at, claim, now)
        hide_jobs([found[0][0]], actor=actor, why=why, now=now)

    run_in_transaction(delete)
    log.info("task_deleted", task=task_id, by=actor)
