"""Move jobs in the queue of their pool, within their band and to another band.

Only this module writes `Job.queue_rank`, and the band and shapes of inserted jobs.
"""

from datetime import datetime

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.state.apply_jobs import note_job
from controlplane.commands.state.shapes import insert_shapes, key_of_shape
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.errors import Conflict, NotFound, NotPermitted
from controlplane.domain.jobs.bands import refuse_band
from controlplane.domain.jobs.moves import QueueEnd, check_move, rank_at
from controlplane.domain.roles import Role
from controlplane.domain.scopes import scopes_of
from controlplane.domain.state.states import Band, Reason, name_band
from controlplane.models import Job, Shape, Task, TaskGroup
from controlplane.outbox import wakes
from controlplane.queries.locks import lock_jobs
from controlplane.queries.placement.quotas import find_limits
from controlplane.queries.sql import execute, rows

_RANKS = """
SELECT COALESCE(min(queue_rank), 0), COALESCE(max(queue_rank), 0) FROM controlplane_job
WHERE pool_id = %s AND band = %s AND queue_rank <> 0 AND finished_at IS NULL AND id <> %s
"""
_RESHAPE = """
UPDATE controlplane_{table} x SET shape_id = s.new
FROM unnest(%s::bigint[], %s::bigint[]) AS s (old, new)
WHERE x.job_id = %s AND x.shape_id = s.old
"""


def move_job(
    *,
    job_id: int,
    to: QueueEnd | None = None,
    band: Band | None = None,
    reason: str = "",
    role: Role,
    actor: str,
    now: datetime,
) -> None:
    """Move a job to another band, and to the front or the end of its band.

    Without `to`, a job is in its new band as if it had been submitted there. `role`: of the actor
    on the project. Raise NotFound, NotPermitted; Conflict if it has ended.
    """

    def move() -> None:
        locked = lock_jobs([job_id]).get(job_id)
        job = Job.objects.visible().select_related("pool", "project").filter(pk=job_id).first()
        if locked is None or job is None:
            raise NotFound(f"there is no job {job_id}")
        if job.finished_at is not None:
            raise Conflict(f"job {job_id} has ended")
        before, parts = {"band": name_band(job.band), "queue_rank": job.queue_rank}, list[str]()
        if band is not None and band != job.band:
            _check_band(job, band, role)
            _change_band(job, band)
            parts.append(f"to band {name_band(band)}")
        if to is not None:
            check_move(to, sequencer=job.pool.sequencer, role=role)
            [(lowest, highest)] = rows(_RANKS, [job.pool_id, job.band, job_id])
            job.queue_rank = rank_at(to, lowest=lowest, highest=highest)
            parts.append(f"to the {to} of its band")
        if not parts:
            return
        job.save(update_fields=["band", "queue_rank"])
        message = " and ".join(parts) + (f": {reason}" if reason else "")
        note_job(locked, Reason.MOVED, message=message, now=now, actor=actor)
        after = {"band": name_band(job.band), "queue_rank": job.queue_rank}
        entry = AuditEntry(
            Action.MOVE_JOB, f"job {job_id}", reason, job_id=job_id, before=before, after=after
        )
        record(entry, actor=actor, now=now)
        transaction.on_commit(wakes.wake_placement, robust=True)

    run_in_transaction(move)


def _check_band(job: Job, band: Band, role: Role) -> None:
    """Raise NotPermitted if the band is above the highest one, except for operators."""
    if role is Role.OPERATOR:
        return
    scopes = scopes_of(job.owner_id, job.project_id, job.project.domain_id)
    if text := refuse_band(name_band(band), find_limits(scopes)):
        raise NotPermitted(text)


def _change_band(job: Job, band: Band) -> None:
    """Set the band of the locked job, and give its groups and tasks the shapes of that band."""
    old = set(TaskGroup.objects.filter(job=job).values_list("shape_id", flat=True))
    if TaskGroup.objects.filter(job=job, retry_rules__isnull=False).exists():
        grown = Task.objects.filter(job=job, resources__isnull=False)
        old.update(grown.values_list("shape_id", flat=True))
    shapes = sorted(Shape.objects.filter(pk__in=old), key=lambda shape: shape.pk)
    new = insert_shapes([key_of_shape(shape, band=band) for shape in shapes])
    for table in ("taskgroup", "task"):
        execute(_RESHAPE.format(table=table), [[shape.pk for shape in shapes], new, job.pk])
    job.band, job.queue_rank = band, 0
