"""What placement looks at: a pool's cells with what is held of them, and what waits, by shape."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from controlplane.domain.jobs import gang_of
from controlplane.domain.snapshots import CellFacts, GangFacts, PendingShape, PlacementSnapshot
from controlplane.domain.states import Band, CellState
from controlplane.queries.jobs_under_lock import load_groups
from controlplane.queries.sql import rows

# Groups looked at in one pass; what lies behind them is looked at by the next one.
MAX_SHAPES = 20_000


def find_due_pools(now: datetime) -> list[int]:
    """Pools in which some task waits and may be placed: the one cheap statement of an idle tick."""
    statement = """
        SELECT p.id FROM controlplane_pool p, LATERAL (
            -- The fence (OFFSET 0) makes waiting tasks the beginning, never all jobs there are.
            SELECT 1 FROM (
                SELECT group_id, job_id FROM controlplane_task
                WHERE state = 1 AND NOT attempt_open
                  AND (not_before IS NULL OR not_before <= %(now)s) OFFSET 0
            ) t
            JOIN controlplane_taskgroup g ON g.id = t.group_id
            JOIN controlplane_job j ON j.id = t.job_id
            WHERE j.pool_id = p.id AND g.startable_at <= %(now)s AND j.ending_as IS NULL
              AND NOT j.is_bouncing LIMIT 1
        ) AS waiting ORDER BY p.id
        """
    return [pool_id for (pool_id,) in rows(statement, {"now": now})]


def is_anything_pending() -> bool:
    """Whether some task waits, even if it may not be placed just now."""
    statement = """
        SELECT EXISTS (SELECT 1 FROM controlplane_task WHERE state = 1 AND NOT attempt_open)
        """
    return bool(rows(statement)[0][0])


def load_placement_snapshot(pool_id: int, *, now: datetime) -> PlacementSnapshot:
    """Everything a placement decision for the pool needs, read in one go."""
    cells = _load_cells(pool_id)
    ready = sorted((c for c in cells if c.state is CellState.READY), key=lambda cell: cell.name)
    unready: dict[CellState, int] = defaultdict(int)
    for cell in cells:
        if cell.state is not CellState.READY:
            unready[cell.state] += 1
    shapes = tuple(_load_shapes(pool_id, now))
    return PlacementSnapshot(
        pool_id=pool_id,
        now=now,
        cells=tuple(ready),
        shapes=shapes,
        unready_cells=dict(unready),
        gangs=load_gangs({shape.job_id for shape in shapes}),
        is_whole=len(shapes) < MAX_SHAPES,
    )


def load_gangs(job_ids: Iterable[int]) -> dict[int, GangFacts]:
    """The coscheduled jobs among `job_ids`, with how many members of each group are where."""
    found = rows(
        "SELECT id, min_available FROM controlplane_job WHERE id = ANY(%s) AND coscheduled",
        [sorted(set(job_ids))],
    )
    groups = load_groups([job_id for job_id, _ in found]) if found else {}
    return {
        job_id: GangFacts(
            group_ids=tuple(group.facts.group_id for group in groups[job_id]),
            groups=tuple(gang_of(groups[job_id])),
            min_available=minimum,
        )
        for job_id, minimum in found
    }


def lock_cells(cell_ids: Iterable[int]) -> dict[int, CellFacts]:
    """Lock cells, sorted by id, and read what is held of them now: the last word before placing."""
    ids = sorted(set(cell_ids))
    rows("SELECT id FROM controlplane_cell WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE", [ids])
    return {cell.cell_id: cell for cell in _cells("c.id = ANY(%s)", [ids])}


def _load_cells(pool_id: int) -> list[CellFacts]:
    return _cells("c.pool_id = %s AND c.incarnation <> ''", [pool_id])


def _cells(condition: str, parameters: Sequence[Any]) -> list[CellFacts]:
    found = rows(
        f"""
        SELECT c.id, c.name, c.state, c.incarnation, c.capacity, c.task_types
        FROM controlplane_cell c WHERE {condition} ORDER BY c.id
        """,
        parameters,
    )
    used = load_usage([row[0] for row in found])
    return [
        CellFacts(
            cell_id=cell_id,
            name=name,
            state=CellState(state),
            incarnation=incarnation,
            capacity=json.loads(capacity),
            used=used.get(cell_id, {}),
            task_types=frozenset(task_types),
        )
        for cell_id, name, state, incarnation, capacity, task_types in found
    ]


def load_usage(cell_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """What unreleased attempts hold of each cell: computed, never a stored counter."""
    held = rows(
        """
        SELECT h.cell_id, g.resources, h.count FROM (
            SELECT cell_id, group_id, count(*) FROM controlplane_attempt
            WHERE cell_id = ANY(%s) AND released_at IS NULL GROUP BY cell_id, group_id
        ) h JOIN controlplane_taskgroup g ON g.id = h.group_id
        """,
        [list(cell_ids)],
    )
    usage: dict[int, dict[str, int]] = {}
    for cell_id, resources, count in held:
        cell = usage.setdefault(cell_id, {})
        for name, amount in json.loads(resources).items():
            cell[name] = cell.get(name, 0) + amount * count
    return usage


def load_requests(group_ids: Iterable[int]) -> dict[int, Mapping[str, int]]:
    """What one task of each group asks for."""
    statement = "SELECT id, resources FROM controlplane_taskgroup WHERE id = ANY(%s)"
    found = rows(statement, [sorted(set(group_ids))])
    return {group_id: json.loads(resources) for group_id, resources in found}


def find_jobs_of_groups(group_ids: Iterable[int]) -> list[int]:
    """The jobs that groups belong to."""
    statement = "SELECT DISTINCT job_id FROM controlplane_taskgroup WHERE id = ANY(%s)"
    return sorted(job_id for (job_id,) in rows(statement, [sorted(set(group_ids))]))


def _load_shapes(pool_id: int, now: datetime) -> list[PendingShape]:
    found = rows(
        """
        SELECT w.group_id, g.job_id, j.band, w.count, g.resources, g.task_type, w.avoid_cell_id,
               g.pending_reason
        FROM (
            SELECT group_id, avoid_cell_id, count(*) FROM controlplane_task
            WHERE state = 1 AND NOT attempt_open
              AND (not_before IS NULL OR not_before <= %(now)s)
            GROUP BY group_id, avoid_cell_id
        ) w
        JOIN controlplane_taskgroup g ON g.id = w.group_id
        JOIN controlplane_job j ON j.id = g.job_id
        WHERE j.pool_id = %(pool)s AND j.ending_as IS NULL AND NOT j.is_bouncing
          AND g.startable_at <= %(now)s
        -- Gangs that have begun come first in their band: what is left of them waits for the rest.
        ORDER BY j.band, (j.coscheduled AND j.started_at IS NOT NULL) DESC, j.id, g.position,
                 w.avoid_cell_id NULLS FIRST
        LIMIT %(limit)s
        """,
        {"now": now, "pool": pool_id, "limit": MAX_SHAPES},
    )
    return [
        PendingShape(
            group_id=group_id,
            job_id=job_id,
            band=Band(band),
            count=count,
            resources=json.loads(resources),
            task_type=task_type,
            avoid_cell_id=avoid,
            reason=None if reason is None else json.loads(reason),
        )
        for group_id, job_id, band, count, resources, task_type, avoid, reason in found
    ]
