"""The queue of a pool: its startable groups in the order of the next pass, and what is held."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import NotFound
from controlplane.domain.holds import OpenHold
from controlplane.domain.placement.cycle.order import order_rows
from controlplane.domain.placement.cycle.plugin_guard import Faults
from controlplane.domain.placement.model.snapshot import PendingRows, ShapeFacts
from controlplane.domain.placement.reasons.explain import Reason
from controlplane.domain.state.states import Band, name_band
from controlplane.models import Pool
from controlplane.queries.holds import IS_HELD, load_holds, load_project_holds
from controlplane.queries.placement.pool_plugins import resolve
from controlplane.queries.placement.snapshot import load_snapshot, policy_of
from controlplane.queries.sql import Row, decoded, named_rows, rows
from controlplane.queries.views.pending import load_group_reasons
from controlplane.queries.work_counts import WAITING_SHAPES, WAITS

# Groups that are ordered, highest bands first; the reading of more would take too long for a page.
MAX_GROUPS = 2_000
# Held jobs that are listed.
MAX_HELD = 100

# From one shape to the next, and from one group of a shape to the next, by the index of waiting
# tasks, however many tasks they have.
_GROUPS = f"""
{WAITING_SHAPES}
SELECT found.group_id FROM (
    SELECT s.id FROM waiting JOIN controlplane_shape s ON s.id = waiting.shape_id
    WHERE s.pool_id = %(pool)s ORDER BY s.band, s.id OFFSET 0
) s,
LATERAL (
    WITH RECURSIVE step AS (
        (SELECT t.group_id FROM controlplane_task t
         WHERE t.shape_id = s.id AND {WAITS} ORDER BY t.group_id LIMIT 1)
        UNION ALL
        SELECT (SELECT t.group_id FROM controlplane_task t
                WHERE t.shape_id = s.id AND {WAITS} AND t.group_id > step.group_id
                ORDER BY t.group_id LIMIT 1)
        FROM step WHERE step.group_id IS NOT NULL
    )
    SELECT group_id FROM step WHERE group_id IS NOT NULL LIMIT %(limit)s
) found
LIMIT %(limit)s
"""
_DETAILS = f"""
SELECT j.band, j.queue_rank AS rank, j.id AS job, g.position, g.id AS group_id, g.name AS group,
       g.shape_id, j.name, (j.coscheduled AND j.started_at IS NOT NULL) AS is_first,
       j.parent_id IS NOT NULL AS is_child, j.owner_id, u.username AS owner, j.project_id,
       p.domain_id, d.name || '/' || p.name AS project, g.resources, g.task_type, j.coscheduled,
       g.counts[{S.PENDING + 1:d}] AS waiting, g.startable_at AS since
FROM controlplane_taskgroup g
JOIN controlplane_job j ON j.id = g.job_id
JOIN auth_user u ON u.id = j.owner_id
JOIN controlplane_project p ON p.id = j.project_id
JOIN controlplane_domain d ON d.id = p.domain_id
WHERE g.id = ANY(%(groups)s) AND j.band = ANY(%(bands)s)
  AND j.ending_as IS NULL AND NOT j.is_requeuing
  AND g.startable_at <= %(now)s AND g.counts[{S.PENDING + 1:d}] > 0 AND NOT {IS_HELD}
ORDER BY j.band, j.queue_rank, j.id, g.position
"""
_HELD_JOBS = """
SELECT id, name FROM controlplane_job
WHERE is_held AND pool_id = %s AND finished_at IS NULL AND deleted_at IS NULL ORDER BY id LIMIT %s
"""
_HELD_PROJECTS = """
SELECT project_id FROM controlplane_hold WHERE ended_at IS NULL AND project_id IS NOT NULL
ORDER BY project_id LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class PoolQueueEntry:
    """A group with `waiting` tasks at a position, from 1. `since`: when it could first start.

    `share`: of its project in the pool, from 0 to 1. `rank`: 0 unless its job was moved.
    """

    position: int
    job: int
    name: str
    group: str
    group_id: int
    band: str
    rank: int
    owner: str
    project: str
    project_id: int
    share: float
    waiting: int
    since: datetime
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class PoolQueue:
    """The ordered groups of a pool. Not `is_whole`: there are more than could be ordered."""

    sequencer: str
    entries: Sequence[PoolQueueEntry]
    is_whole: bool = True


def find_pool(name: str) -> Pool:
    """Return a pool. Raise NotFound."""
    pool = Pool.objects.filter(name=name).first()
    if pool is None:
        raise NotFound(f"there is no pool {name}")
    return pool


def load_queue(pool: Pool, *, now: datetime) -> PoolQueue:
    """Return the groups that may start, in the order in which the next pass considers them.

    The number of statements does not depend on the number of groups.
    """
    found = rows(_GROUPS, {"pool": pool.pk, "limit": MAX_GROUPS + 1})
    groups = [group_id for (group_id,) in found[:MAX_GROUPS]]
    details = named_rows(_DETAILS, {"groups": groups, "bands": list(Band), "now": now})
    if not details:
        return PoolQueue(pool.sequencer, ())
    policy = policy_of(pool)
    examples = {row.shape_id: row for row in details}
    snapshot = load_snapshot(
        pool.pk,
        pool.name,
        policy,
        [_shape(row) for row in examples.values()],
        now=now,
        with_owners=True,
        with_nominations=False,
    )
    order = order_rows(snapshot, _waiting(details), resolve(policy, Faults()).sequencer)
    entries = [
        _entry(position, details[row], order.project_shares)
        for position, row in enumerate(order.rows, 1)
    ]
    return PoolQueue(pool.sequencer, entries, len(found) <= MAX_GROUPS)


def list_queue(
    pool: Pool, *, readable: Collection[int] | None, after: int | None, limit: int, now: datetime
) -> list[dict[str, Any]]:
    """Return entries behind the position `after` of readable projects (None: all), with reasons."""
    chosen = [
        entry
        for entry in load_queue(pool, now=now).entries
        if entry.position > (after or 0) and (readable is None or entry.project_id in readable)
    ][:limit]
    reasons = load_group_reasons([entry.group_id for entry in chosen], now=now)
    return [_document(entry, reasons.get(entry.group_id, [])) for entry in chosen]


def list_held_jobs(pool_id: int) -> list[tuple[int, str, OpenHold]]:
    """Return (id, name, hold) of the first unfinished jobs of a pool that are held themselves."""
    found = rows(_HELD_JOBS, [pool_id, MAX_HELD])
    holds = load_holds([job_id for job_id, _ in found]) if found else {}
    return [(job_id, name, holds[job_id][0]) for job_id, name in found if job_id in holds]


def list_held_projects() -> list[tuple[int, OpenHold]]:
    """Return (id, hold) of the first held projects."""
    found = rows(_HELD_PROJECTS, [MAX_HELD])
    return sorted(load_project_holds([project_id for (project_id,) in found]).items())


def _document(entry: PoolQueueEntry, reasons: Sequence[Reason]) -> dict[str, Any]:
    found = asdict(entry) | {"reason": reasons[0] if reasons else None}
    del found["group_id"], found["project_id"]
    return found


def _entry(position: int, row: Row, shares: dict[int, float]) -> PoolQueueEntry:
    return PoolQueueEntry(
        position=position,
        job=row.job,
        name=row.name,
        group=row.group,
        group_id=row.group_id,
        band=name_band(row.band),
        rank=row.rank,
        owner=row.owner,
        project=row.project,
        project_id=row.project_id,
        share=shares.get(row.project_id, 0.0),
        waiting=row.waiting,
        since=row.since,
    )


def _shape(row: Row) -> ShapeFacts:
    """Return what the order needs of a shape."""
    return ShapeFacts(
        shape_id=row.shape_id,
        band=Band(row.band),
        owner_id=row.owner_id,
        project_id=row.project_id,
        domain_id=row.domain_id,
        count=row.waiting,
        resources={name: int(amount) for name, amount in decoded(row.resources).items() if amount},
        task_type=row.task_type,
        coscheduled=row.coscheduled,
    )


def _waiting(details: Sequence[Row]) -> PendingRows:
    nothing = [None] * len(details)
    return PendingRows(
        shape_ids=[row.shape_id for row in details],
        group_ids=[row.group_id for row in details],
        job_ids=[row.job for row in details],
        counts=[row.waiting for row in details],
        is_first=[row.is_first for row in details],
        is_child=[row.is_child for row in details],
        since=[row.since for row in details],
        timeout_seconds=nothing,
        avoid_cell_ids=nothing,
        nominated_cell_ids=nothing,
        prefer_cell_ids=nothing,
        reasons=nothing,
        ranks=[row.rank for row in details],
    )
