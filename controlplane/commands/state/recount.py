"""Check the invariants that a recount can repair, and repair their violations."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.state.apply import apply, repair_flag, write_counts
from controlplane.commands.state.apply_sql import REPAIR_FLAG
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.integrity import (
    REPAIRED,
    IntegrityRows,
    InvariantViolation,
    Repair,
    find_violations,
)
from controlplane.domain.integrity.attempts import requeue
from controlplane.domain.state.effects import Effects
from controlplane.queries.integrity.invariants import load_repaired
from controlplane.queries.locks import lock_jobs
from controlplane.queries.task_facts import load_facts_of_tasks

ACTOR = "recount"


def recount_jobs(
    job_ids: Sequence[int], *, repair: bool, by_command: bool = False, now: datetime
) -> list[InvariantViolation]:
    """Return the violations of the jobs, read in one transaction. With `repair`, repair them.

    Every change of a task requires its job's lock, so these jobs do not change during the count,
    and other jobs are not blocked.
    """

    def work() -> list[InvariantViolation]:
        jobs = lock_jobs(job_ids)
        counted = load_repaired(list(jobs))
        found = find_violations(counted, REPAIRED)
        requeued = [item for item in found if item.repair is Repair.REQUEUE]
        if repair and requeued:
            facts = load_facts_of_tasks(_rows_of(Repair.REQUEUE, requeued))
            changes = [requeue(task, now=now) for task in facts]
            apply(Effects(changes), jobs=jobs, now=now, actor=ACTOR)
            counted = load_repaired(list(lock_jobs(job_ids)))
            found = requeued + find_violations(counted, REPAIRED)
        if repair and found:
            _repair(found, counted, now)
            again = sorted({item.job_id for item in found})
            jobs = lock_jobs(job_ids)  # read the repaired flags
            apply(Effects(derived=again), jobs=jobs, now=now, actor=ACTOR)
            repaired = "; ".join(map(str, found))[:1000]
            entries = [AuditEntry(Action.REPAIR_JOB, f"job {it}", repaired, it) for it in again]
            if by_command:  # those of convergence have alerts
                record(*entries, now=now)
        return found

    return run_in_transaction(work) if job_ids else []


def _repair(found: Iterable[InvariantViolation], counted: IntegrityRows, now: datetime) -> None:
    if wrong := _rows_of(Repair.COUNT, found):
        counts = {key: counted.task_counts[key] for key in wrong}
        write_counts({key: (item.counts, item.excused) for key, item in counts.items()})
    for flag in REPAIR_FLAG:
        if row_ids := _rows_of(flag, found):
            repair_flag(flag, row_ids, now=now)


def _rows_of(repair: Repair, found: Iterable[InvariantViolation]) -> list[int]:
    return sorted({item.row_id for item in found if item.repair is repair})
