"""Move jobs to the front or the end of their band. Only this module writes `Job.queue_rank`."""

from datetime import datetime

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.state.apply_jobs import note_job
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.moves import QueueEnd, check_move, rank_at
from controlplane.domain.roles import Role
from controlplane.domain.state.states import Reason
from controlplane.models import Job
from controlplane.outbox import wakes
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import rows

_RANKS = """
SELECT COALESCE(min(queue_rank), 0), COALESCE(max(queue_rank), 0) FROM controlplane_job
WHERE pool_id = %s AND band = %s AND queue_rank <> 0 AND finished_at IS NULL AND id <> %s
"""


def move_job(
    *, job_id: int, to: QueueEnd, reason: str = "", role: Role, actor: str, now: datetime
) -> None:
    """Move a job to the front or the end of its band in the queue of its pool.

    `role`: of the actor on the project. Raise NotFound, NotPermitted; Conflict if it has ended.
    """

    def move() -> None:
        locked = lock_jobs([job_id]).get(job_id)
        job = Job.objects.visible().select_related("pool").filter(pk=job_id).first()
        if locked is None or job is None:
            raise NotFound(f"there is no job {job_id}")
        if job.finished_at is not None:
            raise Conflict(f"job {job_id} has ended")
        check_move(to, sequencer=job.pool.sequencer, role=role)
        [(lowest, highest)] = rows(_RANKS, [job.pool_id, job.band, job_id])
        rank = rank_at(to, lowest=lowest, highest=highest)
        Job.objects.filter(pk=job_id).update(queue_rank=rank)
        message = f"to the {to} of its band" + (f": {reason}" if reason else "")
        note_job(locked, Reason.MOVED, message=message, now=now, actor=actor)
        entry = AuditEntry(
            Action.MOVE_JOB,
            f"job {job_id}",
            reason,
            job_id=job_id,
            before={"queue_rank": job.queue_rank},
            after={"queue_rank": rank},
        )
        record(entry, actor=actor, now=now)
        transaction.on_commit(wakes.wake_placement, robust=True)

    run_in_transaction(move)
