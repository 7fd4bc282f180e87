"""Run work in transactions, with retries; isolate a failing job from a batch of jobs."""

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog
from django.conf import settings
from django.db import OperationalError, connection, transaction

from controlplane import clock
from controlplane.commands.state.apply import apply
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.queries.locks import find_free_jobs
from controlplane.queries.ticks import try_lock

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

# Deadlocks and serialization failures are transient; this many consecutive ones are not.
_TRIES = 3
_TRANSIENT = ("40001", "40P01")
# lock_not_available: the wait for a lock exceeded lock_timeout.
_LOCKED = "55P03"

_PLACEMENT_LOCK = zlib.crc32(b"cellrun placement")


def for_each_batch(
    job_ids: Sequence[int], work: Callable[[Sequence[int]], _T], *, what: str
) -> list[_T]:
    """Run `work` on all jobs in one transaction; on failure, bisect until the bad job is alone.

    Return the values of the committed batches. Skip, log and raise an alert for a job that fails
    alone or that another transaction keeps locked.
    """
    results: list[_T] = []
    pending = [sorted(set(job_ids))]
    while pending:
        batch = pending.pop()
        if not batch:
            continue
        try:
            results.append(run_in_transaction(partial(work, batch)))
        except OperationalError as error:
            if _sqlstate(error) != _LOCKED:
                raise
            free = find_free_jobs(batch)
            locked = sorted(set(batch) - set(free))
            if not locked:  # the lock was not on a job, or was released meanwhile
                raise
            log.error("jobs_locked", jobs=locked, what=what)
            _alert_skipped(locked, "another transaction keeps it locked", what)
            pending.append(free)
        except Exception as error:  # one poisoned row must not end the pass
            if len(batch) > 1:
                middle = len(batch) // 2
                pending += [batch[middle:], batch[:middle]]
                continue
            log.exception("job_skipped", job=batch[0], what=what)
            _alert_skipped(batch, str(error)[:1000], what)
    return results


def _alert_skipped(job_ids: Sequence[int], why: str, what: str) -> None:
    alerts = [RaiseAlert("job_skipped", f"{what} of job {job_id}", why) for job_id in job_ids]
    apply(Effects(alerts=alerts), now=clock.now())


def _sqlstate(error: OperationalError) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def run_in_transaction(work: Callable[[], _T]) -> _T:
    """Run `work` in a transaction; retry deadlocks and serialization failures, three tries in all.

    Inside another transaction there is one try only: the outer transaction keeps its locks, so its
    owner has to retry.
    """
    left = 1 if connection.in_atomic_block else _TRIES
    while True:
        left -= 1
        try:
            with transaction.atomic():
                return work()
        except OperationalError as error:
            state = _sqlstate(error)
            if state not in _TRANSIENT or not left:
                raise
            log.info("transaction_retried", sqlstate=state)


def in_turn(work: Callable[[], _T]) -> _T | None:
    """Run `work` of a placement tick in a transaction; return None while another tick runs.

    The advisory lock, which each transaction takes again, only saves work: concurrent decisions are
    detected when the rows are locked. After a deadlock all of `work` runs again.
    """

    def locked() -> _T | None:
        is_ours = not settings.CELLRUN.advisory_locks or try_lock(_PLACEMENT_LOCK)
        return work() if is_ours else None

    return run_in_transaction(locked)
