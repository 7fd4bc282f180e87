"""Delete jobs: hide them at once; `purge` removes their files and rows later."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog

from controlplane.commands.jobs.one_offs import check_claim_of_job
from controlplane.commands.state.apply import hide_jobs
from controlplane.commands.state.cursors import save_cursor
from controlplane.commands.state.transactions import for_each_batch, run_in_transaction
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.state.states import TERMINAL
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.convergence.deletion import (
    find_reader,
    list_expired_jobs,
    pick_expired_jobs,
)
from controlplane.queries.locks import lock_jobs

log = structlog.get_logger(__name__)

PAGE = 500
# Pages per query, because the query also reads all jobs that others refer to.
_PAGES_PER_RUN = 10

# The cursor bounds the time that a tick spends on jobs that something refers to.
_CURSOR = "expired_jobs"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def delete_job(*, job_id: int, actor: str, now: datetime, claim: UUID | None = None) -> None:
    """Hide the job and free its guid. Raise NotFound, Conflict.

    A job conflicts if it has not ended, if an unfinished retry still reads from it, or if its
    one-off task is not RESOLVING by `claim`. Source: Diego, "Any client intending to delete the
    Task must first successfully move it from the COMPLETED state to the RESOLVING state".
    """

    def delete() -> None:
        jobs = lock_jobs([job_id])
        if job_id not in jobs:
            raise NotFound(f"there is no job {job_id}")
        if jobs[job_id].state not in TERMINAL:
            raise Conflict(f"job {job_id} has not ended: cancel it first")
        reader = find_reader(job_id)
        if reader is not None:
            raise Conflict(f"job {reader}, a retry of job {job_id}, has not ended yet")
        check_claim_of_job(job_id=job_id, claim=claim, now=now)
        if not hide_jobs([job_id], actor=actor, why="by request", now=now):
            raise NotFound(f"there is no job {job_id}")

    run_in_transaction(delete)
    log.info("job_deleted", job=job_id, by=actor)


def delete_expired(*, now: datetime, is_over: Callable[[], bool]) -> tuple[int, bool]:
    """Delete expired jobs until `is_over()`; return how many, and whether no work is left for now.

    A job is kept while anything refers to it. After a page of only such jobs the next tick
    continues at the cursor, without a wake.
    """
    deleted, began = 0, _place_of(load_cursor(_CURSOR).after)
    reached = began

    def delete(batch: Sequence[int]) -> int:
        lock_jobs(batch)
        picked = pick_expired_jobs(batch, now)
        return len(hide_jobs(picked, actor="convergence", why="kept for its time", now=now))

    while not is_over():
        found = list_expired_jobs(now, PAGE * _PAGES_PER_RUN, after=reached)
        for start in range(0, len(found.free), PAGE):
            if is_over():
                return deleted, False
            page = found.free[start : start + PAGE]
            deleted += sum(for_each_batch(page, delete, what="deletion by age"))
        if found.reached != reached:
            save_cursor(_CURSOR, after=_text_of(found.reached), now=now)
        reached = found.reached
        if reached is None:
            if began is None:
                return deleted, True
            began = None  # continue at the front
        elif not found.free:
            return deleted, True
    return deleted, False


def _text_of(place: tuple[datetime, int] | None) -> str:
    """Write the instant, in microseconds, and the job id of a place."""
    return f"{(place[0] - _EPOCH) // timedelta(microseconds=1)}:{place[1]}" if place else ""


def _place_of(text: str) -> tuple[datetime, int] | None:
    """Read what `_text_of` wrote."""
    if not text:
        return None
    microseconds, _, job_id = text.partition(":")
    return _EPOCH + timedelta(microseconds=int(microseconds)), int(job_id)
