"""Deleting jobs: nobody sees them from then on. Their files and rows go later (`purge`)."""

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

import structlog

from controlplane.commands.jobs.one_offs import check_claim_of_job
from controlplane.commands.state.apply import hide_jobs
from controlplane.commands.state.transactions import for_each_batch, run_in_transaction
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.state.states import TERMINAL
from controlplane.queries.convergence.deletion import (
    find_reader,
    list_expired_jobs,
    pick_expired_jobs,
)
from controlplane.queries.locks import lock_jobs

log = structlog.get_logger(__name__)

PAGE = 500
# Looked at at once, since looking passes all those by that something refers to.
_PAGES_PER_LOOK = 10


class _Reached:
    """Up to which job the last look came that did not see all: the next one goes on there.

    So jobs that something refers to take no more of a tick than others, however many they are.
    """

    place: tuple[datetime, int] | None = None


def delete_job(*, job_id: int, actor: str, now: datetime, claim: UUID | None = None) -> None:
    """Nobody sees the job any more and its guid is free. Raises NotFound, Conflict.

    A job that has not ended is not deleted, nor one that an unfinished retry still reads from, nor
    that of a one-off task, unless that is RESOLVING by `claim`. Source: Diego, "Any client
    intending to delete the Task must first successfully move it from the COMPLETED state to the
    RESOLVING state".
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
    """Delete jobs that were kept for their time, until time `is_over`; how many, and if it did.

    One that something refers to is not, as long as that is so; after a look at nothing else the
    next call goes on, which nobody has to wake.
    """
    deleted, began = 0, _Reached.place

    def delete(batch: Sequence[int]) -> None:
        nonlocal deleted
        lock_jobs(batch)
        picked = pick_expired_jobs(batch, now)
        hidden = hide_jobs(picked, actor="convergence", why="kept for its time", now=now)
        deleted += len(hidden)

    while not is_over():
        found = list_expired_jobs(now, PAGE * _PAGES_PER_LOOK, after=_Reached.place)
        for start in range(0, len(found.free), PAGE):
            if is_over():
                return deleted, False
            for_each_batch(found.free[start : start + PAGE], delete, what="deletion by age")
        _Reached.place = found.reached
        if found.reached is None:
            if began is None:
                return deleted, True
            began = None  # those at the front, too
        elif not found.free:
            return deleted, True
    return deleted, False
