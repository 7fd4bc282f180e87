"""Deleting jobs: nobody sees them from then on; files and rows go in pages, once all is settled."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from controlplane.commands.artifacts import forget_attempts
from controlplane.commands.batches import for_each_batch, run_in_transaction
from controlplane.commands.effects import hide_job
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.states import TERMINAL
from controlplane.outbox.discarded import delete_discarded
from controlplane.queries.jobs_under_lock import lock_jobs
from controlplane.queries.sql import execute, rows

log = structlog.get_logger(__name__)

PAGE = 500
# Pages of rows in one tick, of all deleted jobs together.
_PAGES_PER_TICK = 50
# Attempts whose files are put away in one transaction.
_ATTEMPTS_PER_PAGE = 100
# A tick that takes long is taken for one that was away: other rules would wait for a lease.
_SECONDS_PER_TICK = 1.0


def delete_job(*, job_id: int, actor: str, now: datetime) -> None:
    """Nobody sees the job any more and its guid is free. Raises NotFound, Conflict.

    A job that has not ended is not deleted, nor one that an unfinished retry still reads from.
    """

    def delete() -> None:
        jobs = lock_jobs([job_id])
        if job_id not in jobs:
            raise NotFound(f"there is no job {job_id}")
        if jobs[job_id].state not in TERMINAL:
            raise Conflict(f"job {job_id} has not ended: cancel it first")
        reader = _find_reader(job_id)
        if reader is not None:
            raise Conflict(f"job {reader}, a retry of job {job_id}, has not ended yet")
        if not hide_job(job_id, now=now):
            raise NotFound(f"there is no job {job_id}")

    run_in_transaction(delete)
    log.info("job_deleted", job=job_id, by=actor)


def purge_jobs(job_ids: Sequence[int], *, is_over: Callable[[], bool] | None = None) -> int:
    """Remove rows and files of deleted, settled jobs until time `is_over`; how many are gone.

    Files are put out of the way with the rows, and deleted in no transaction; what is left of them
    goes with the next call, of whatever jobs.
    """
    is_over = is_over or _timer(_SECONDS_PER_TICK)
    pages, gone = 0, 0

    def purge(batch: Sequence[int]) -> None:
        nonlocal pages, gone
        for job_id in batch:
            lock_jobs([job_id])
            pages += 1
            if not _purge_page(job_id):
                gone += 1

    for job_id in job_ids:
        before = gone
        while pages < _PAGES_PER_TICK and gone == before and not is_over():
            seen = pages
            for_each_batch([job_id], purge, what="deletion")
            if pages == seen:
                break  # it failed; the next tick tries again
    delete_discarded(is_over)
    return gone


def _timer(seconds: float) -> Callable[[], bool]:
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() >= ends


def _find_reader(job_id: int) -> int | None:
    found = rows(
        """
        WITH RECURSIVE retry (id) AS (
            SELECT id FROM controlplane_job WHERE retry_of_id = %s
            UNION SELECT j.id FROM controlplane_job j JOIN retry r ON j.retry_of_id = r.id
        )
        SELECT j.id FROM controlplane_job j JOIN retry r ON r.id = j.id
        WHERE j.finished_at IS NULL ORDER BY j.id LIMIT 1
        """,
        [job_id],
    )
    return int(found[0][0]) if found else None


# Tasks last, and the job itself when nothing of it is left: its history is kept as long as it is.
_PAGES = (
    """
    DELETE FROM controlplane_transition WHERE id IN (
        SELECT id FROM controlplane_transition WHERE job_id = %s LIMIT %s)
    """,
    """
    DELETE FROM controlplane_task WHERE id IN (
        SELECT id FROM controlplane_task WHERE job_id = %s LIMIT %s)
    """,
)


# Children and retries came later than the job itself, whose lock is held.
_UNLINK = """
WITH held AS MATERIALIZED (
    SELECT id FROM controlplane_job WHERE parent_id = %s OR retry_of_id = %s
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE controlplane_job j SET parent_id = NULLIF(j.parent_id, %s),
       retry_of_id = NULLIF(j.retry_of_id, %s)
FROM held WHERE j.id = held.id
"""


def _purge_page(job_id: int) -> int:
    """Delete a page of what belongs to the job; 0: nothing was left, and the job is gone, too."""
    # Files before rows, which alone say whose they are: nothing is left if we die in between.
    if uids := forget_attempts(job_id, _ATTEMPTS_PER_PAGE):
        return execute("DELETE FROM controlplane_attempt WHERE uid = ANY(%s::uuid[])", [uids])
    for statement in _PAGES:
        deleted = execute(statement, [job_id, PAGE])
        if deleted:
            return deleted
    execute("DELETE FROM controlplane_jobdependency WHERE job_id = %s", [job_id])
    execute("DELETE FROM controlplane_taskgroup WHERE job_id = %s", [job_id])
    execute(_UNLINK, [job_id, job_id, job_id, job_id])
    execute("DELETE FROM controlplane_job WHERE id = %s", [job_id])
    return 0
