"""Work on many jobs in bounded transactions in which one bad job cannot hold up the others."""

from collections.abc import Callable, Sequence

import structlog
from django.db import OperationalError, connection, transaction

from controlplane import clock
from controlplane.commands.state.apply import raise_alerts
from controlplane.domain.state.effects import RaiseAlert
from controlplane.queries.locks import find_free_jobs

log = structlog.get_logger(__name__)

# Deadlocks and serialization failures pass; more than this many in a row do not.
_TRIES = 3
_TRANSIENT = ("40001", "40P01")
# A lock that was waited for in vain (settings: lock_timeout).
_LOCKED = "55P03"


def for_each_batch(
    job_ids: Sequence[int], work: Callable[[Sequence[int]], None], *, what: str
) -> None:
    """Do `work` on all jobs in one transaction; if it fails, halve until what fails is alone.

    `work` is called inside the transaction. A job that fails alone is skipped, logged and alerted,
    and so is one that somebody else keeps locked.
    """
    pending = [sorted(set(job_ids))]
    while pending:
        batch = pending.pop()
        if not batch:
            continue
        try:
            run_in_transaction(lambda batch=batch: work(batch))  # type: ignore[misc]
        except OperationalError as error:
            if _sqlstate(error) != _LOCKED:
                raise
            free = find_free_jobs(batch)
            locked = sorted(set(batch) - set(free))
            if not locked:  # it was not for a job that we waited, or it is let go just now
                raise
            log.error("jobs_locked", jobs=locked, what=what)
            _tell_skipped(locked, "somebody else keeps it locked", what)
            pending.append(free)
        except Exception as error:  # one poisoned row must not end the pass
            if len(batch) > 1:
                middle = len(batch) // 2
                pending += [batch[middle:], batch[:middle]]
                continue
            log.exception("job_skipped", job=batch[0], what=what)
            _tell_skipped(batch, str(error)[:1000], what)


def _tell_skipped(job_ids: Sequence[int], why: str, what: str) -> None:
    alerts = [RaiseAlert("job_skipped", f"{what} of job {job_id}", why) for job_id in job_ids]
    raise_alerts(alerts, now=clock.now())


def _sqlstate(error: OperationalError) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def run_in_transaction(work: Callable[[], None]) -> None:
    """`work` in a transaction; a deadlock or serialization failure gets three tries in all.

    Within another transaction it gets one: that one holds on to its locks, so whoever began it has
    to try again.
    """
    for left in reversed(range(1 if connection.in_atomic_block else _TRIES)):
        try:
            with transaction.atomic():
                work()
            return
        except OperationalError as error:
            state = _sqlstate(error)
            if state not in _TRANSIENT or not left:
                raise
            log.info("transaction_retried", sqlstate=state)
