"""Start, run and stop bulk operations. Only this module writes them.

Each job is one transaction: the action, and the place and the counts of the operation. A death
between two jobs loses nothing, and no job is processed twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.holds import hold_job, release_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.state.transactions import for_each_batch, run_in_transaction
from controlplane.domain.errors import CellrunError, Conflict, NotFound
from controlplane.domain.jobs.bulk import (
    MAX_REFUSALS,
    MAX_RUNNING,
    BulkAction,
    BulkFilter,
    BulkPlace,
    BulkState,
    check_bulk,
)
from controlplane.domain.roles import Access, Role
from controlplane.models import BulkOperation
from controlplane.queries.jobs.bulk import (
    BulkJob,
    find_newest_job,
    find_page,
    load_actor,
    preview_bulk,
)
from controlplane.spec import InvalidSpec

PAGE = 50
"""Jobs of an operation that are processed before the next operation has its turn."""

SKIPPED = "it could not be processed: see the alert job_skipped"
NO_ACTOR = "the token or the user that started it is not valid any more"


@dataclass(frozen=True, slots=True)
class BulkActor:
    """The user that starts an operation, with the roles of the token; None: of a session."""

    user: User
    access: Access
    token_id: int | None = None


def start_bulk(
    *, action: BulkAction, wanted: BulkFilter, reason: str, by: BulkActor, now: datetime
) -> int:
    """Store an operation, which convergence runs, and return its id.

    It processes the jobs that exist now. Raise InvalidSpec, NotFound; Conflict if no job matches or
    too many operations of the user run.
    """
    check_bulk(action, wanted, reason)
    expected = preview_bulk(action, wanted, access=by.access)
    if not expected.count and expected.is_whole:
        raise Conflict(f"there is no job to {action} that matches and that you may change")
    with transaction.atomic():
        # The lock counts concurrent starts.
        User.objects.select_for_update(no_key=True).get(pk=by.user.pk)
        if BulkOperation.objects.filter(user=by.user, ended_at=None).count() >= MAX_RUNNING:
            raise Conflict(f"{MAX_RUNNING} bulk operations of yours run already")
        newest = find_newest_job()
        operation = BulkOperation.objects.create(
            action=action,
            filter=wanted.as_document(),
            reason=reason,
            user=by.user,
            token_id=by.token_id,
            created_at=now,
            turn_at=now,
            expected=expected.count,
            after_job_id=BulkPlace.start(action).as_number(newest),
            last_job_id=newest,
        )
        shown = {name: value for name, value in operation.filter.items() if value}
        after = {"action": str(action), "filter": shown, "expected": expected.count}
        entry = AuditEntry(
            Action.START_BULK_OPERATION, f"bulk operation {operation.pk}", reason, after=after
        )
        record(entry, actor=by.user.get_username(), now=now)
    return operation.pk


def stop_bulk(*, operation_id: int, actor: str, now: datetime) -> None:
    """Process no further job. Raise NotFound; Conflict if the operation has ended."""
    with transaction.atomic():
        operation = _lock(operation_id)
        if operation is None:
            raise NotFound(f"there is no bulk operation {operation_id}")
        if operation.ended_at is not None:
            raise Conflict(f"bulk operation {operation_id} has ended already")
        _end(operation, BulkState.STOPPED, f"stopped by {actor}", now)
        entry = AuditEntry(Action.STOP_BULK_OPERATION, f"bulk operation {operation_id}")
        record(entry, actor=actor, now=now)


def run_bulk_page(operation_id: int, *, now: datetime, is_over: Callable[[], bool]) -> int:
    """Process the next jobs until `is_over()`; return how many, refused ones included.

    The roles are those that its token or user has now.
    """
    operation = BulkOperation.objects.select_related("user").filter(pk=operation_id).first()
    if operation is None or operation.ended_at is not None:
        return 0
    access = load_actor(operation, now=now)
    if access is None:
        _finish(operation_id, BulkState.STOPPED, NO_ACTOR, now)
        return 0
    page, processed = find_page(operation, access, PAGE), 0
    for job in page.jobs:
        # The next page has the roles of then.
        if is_over() or load_actor(operation, now=now) != access:
            break
        place = BulkPlace(job.job_id, page.is_first)
        processed += _process(operation_id, job, place, access, now)
    else:
        if not page.is_last:
            reached = BulkPlace(page.reached, page.is_first).as_number(operation.last_job_id)
            _advance(operation_id, reached, now)
        elif page.is_first:
            _advance(operation_id, 0, now)
        else:
            _finish(operation_id, BulkState.DONE, "", now)
    return processed


def _process(
    operation_id: int, job: BulkJob, place: BulkPlace, access: Access, now: datetime
) -> int:
    """Act on a job and count it, in one transaction. A job that always fails is refused."""

    def work(_: Sequence[int]) -> int:
        act = partial(_act, job=job, access=access, now=now)
        return _step(operation_id, place, act, now)

    def skip(_: BulkOperation) -> None:
        raise Conflict(SKIPPED)

    done = for_each_batch([job.job_id], work, what=f"bulk operation {operation_id}")
    if done:
        return done[0]
    return run_in_transaction(lambda: _step(operation_id, place, skip, now))


def _step(
    operation_id: int, place: BulkPlace, act: Callable[[BulkOperation], None], now: datetime
) -> int:
    """Lock the operation, before any job, so that concurrent ticks do not process a job twice."""
    operation = _lock(operation_id)
    if operation is None or operation.ended_at is not None:
        return 0
    number = place.as_number(operation.last_job_id)
    if operation.after_job_id >= number:
        return 0
    try:
        with transaction.atomic():
            act(operation)
        operation.done += 1
    except (CellrunError, InvalidSpec) as fault:
        # The second round tries the job again, and counts it.
        operation.refused += not place.is_first
        if len(operation.refusals) < MAX_REFUSALS and not place.is_first:
            refusal = {"job": place.job_id, "text": str(fault)[:500]}
            operation.refusals = [*operation.refusals, refusal]
    operation.after_job_id, operation.turn_at = number, now
    operation.save()
    return 1


def _act(operation: BulkOperation, *, job: BulkJob, access: Access, now: datetime) -> None:
    job_id, actor = job.job_id, operation.user.get_username()
    reason = f"bulk operation {operation.pk}: {operation.reason}"
    role = access.role_on(job.place) or Role.VIEWER
    match BulkAction(operation.action):
        case BulkAction.CANCEL:
            cancel_job(job_id=job_id, reason=reason, force=False, actor=actor, now=now)
        case BulkAction.RETRY:
            retry_job(job_id=job_id, guid=None, actor=actor, now=now)
        case BulkAction.DELETE:
            delete_job(job_id=job_id, actor=actor, now=now)
        case BulkAction.HOLD:
            hold_job(job_id=job_id, reason=reason, role=role, actor=actor, now=now)
        case BulkAction.RELEASE:
            release_job(job_id=job_id, reason=reason, role=role, actor=actor, now=now)


def _advance(operation_id: int, reached: int, now: datetime) -> None:
    found = BulkOperation.objects.filter(pk=operation_id, ended_at=None)
    found.filter(after_job_id__lt=reached).update(after_job_id=reached, turn_at=now)


def _finish(operation_id: int, state: BulkState, because: str, now: datetime) -> None:
    with transaction.atomic():
        operation = _lock(operation_id)
        if operation is not None and operation.ended_at is None:
            _end(operation, state, because, now)


def _end(operation: BulkOperation, state: BulkState, because: str, now: datetime) -> None:
    operation.state, operation.ended_at, operation.ended_because = state, now, because
    operation.save()


def _lock(operation_id: int) -> BulkOperation | None:
    found = BulkOperation.objects.select_for_update(no_key=True, of=("self",))
    return found.select_related("user").filter(pk=operation_id).first()
