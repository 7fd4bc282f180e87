"""Rule 13: figures of pools and cells, and the changes of tasks in a range of the history."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.latencies import BOUNDS
from controlplane.domain.placement.reasons.explain import (
    BUILD_SLOTS_FULL,
    INSUFFICIENT_RESOURCES,
    NO_CELL_MATCHES,
    QUEUE_POSITION,
    WAITING_FOR_GANG,
)
from controlplane.domain.state.states import CellState
from controlplane.queries.cells.capacity import load_usage
from controlplane.queries.holds import IS_HELD
from controlplane.queries.sql import decoded, named_rows, rows, scalar
from controlplane.queries.work_counts import WAITING_SHAPES, WAITS

FAILED = (S.FAILED, S.WORKER_FAILED, S.UNSCHEDULABLE)
KILLED = (S.KILLED, S.PREEMPTED)
JOBS_OF_REASON = 3

_FAILED = ", ".join(f"{state:d}" for state in FAILED)

# A task may become RUNNING more than once; its latency is that of the first time. OFFSET 0: tasks
# and their earlier changes by their keys. For a large range PostgreSQL would read both tables, in
# 10 s with a million tasks.
_CHANGES = f"""
    WITH changed AS MATERIALIZED (
        SELECT h.id, h.job_id, h.task_id, h.to_state, h.attempt_state, h.reason, h.at,
               j.pool_id, j.created_at
        FROM controlplane_transition h JOIN controlplane_job j ON j.id = h.job_id
        WHERE h.id > %(after)s AND h.id <= %(until)s AND h.task_id IS NOT NULL
          AND h.from_state <> h.to_state
    )
    SELECT 'state' AS kind, pool_id, to_state::text AS key, count(*) AS number,
           0::bigint AS retried, NULL::bigint[] AS jobs
    FROM changed GROUP BY pool_id, to_state
    UNION ALL
    SELECT 'latency', c.pool_id, width_bucket(
               extract(epoch FROM c.at - greatest(c.created_at, g.startable_at))::float8,
               %(bounds)s::float8[])::text, count(*), 0, NULL
    FROM changed c
    CROSS JOIN LATERAL (SELECT group_id FROM controlplane_task WHERE id = c.task_id OFFSET 0) t
    JOIN controlplane_taskgroup g ON g.id = t.group_id
    WHERE c.to_state = {S.RUNNING:d} AND NOT EXISTS (
        SELECT 1 FROM controlplane_transition e
        WHERE e.task_id = c.task_id AND e.id < c.id AND e.to_state = {S.RUNNING:d} OFFSET 0)
    GROUP BY 2, 3
    UNION ALL
    SELECT 'failure', pool_id, reason, sum(ended)::bigint, sum(retried)::bigint,
           (array_agg(job_id ORDER BY last DESC))[1:{JOBS_OF_REASON}]
    FROM (
        SELECT pool_id, reason, job_id, max(id) AS last,
               count(*) FILTER (WHERE to_state <> {S.PENDING:d}) AS ended,
               count(*) FILTER (WHERE to_state = {S.PENDING:d}) AS retried
        FROM changed
        WHERE to_state IN ({_FAILED})
           OR (to_state = {S.PENDING:d} AND attempt_state IN ({_FAILED}))
        GROUP BY 1, 2, 3
    ) failing
    GROUP BY 2, 3
    """

MAX_TASKS_OF_SHAPE = 20_000
"""Tasks of a shape that count as wanted: more than an autoscaler adds cells for at once."""

# More cells help a task that waits for capacity, or whose pool has no ready cell; they do not help
# one that is larger than every cell, matches none, or waits for a quota, tokens or its key.
_HELPED_BY_CELLS = f"""
    CASE coalesce(why.reason ->> 'code', '{QUEUE_POSITION}')
        WHEN '{NO_CELL_MATCHES}' THEN (why.reason ->> 'ready_cells')::int = 0
        WHEN '{INSUFFICIENT_RESOURCES}'
            THEN NOT coalesce((why.reason ->> 'never_fits')::boolean, false)
        ELSE why.reason IS NULL OR why.reason ->> 'code' IN
            ('{BUILD_SLOTS_FULL}', '{WAITING_FOR_GANG}', '{QUEUE_POSITION}') END
    """
# From one shape to the next by the index of waiting tasks, and then some tasks of each.
_WANTING = f"""
    {WAITING_SHAPES}, counted AS MATERIALIZED (
        SELECT waiting.shape_id, w.group_id, w.count
        FROM waiting CROSS JOIN LATERAL (
            SELECT group_id, count(*) FROM (
                SELECT t.group_id FROM controlplane_task t
                WHERE t.shape_id = waiting.shape_id AND {WAITS} AND NOT t.cache_blocked
                  AND (t.not_before IS NULL OR t.not_before <= %(now)s)
                ORDER BY t.group_id, t.index LIMIT %(tasks)s
            ) first GROUP BY group_id
        ) w
    )
    SELECT s.pool_id, s.resources, sum(w.count)::bigint
    FROM counted w JOIN controlplane_shape s ON s.id = w.shape_id
    JOIN controlplane_taskgroup g ON g.id = w.group_id
    JOIN controlplane_job j ON j.id = g.job_id
    CROSS JOIN LATERAL (SELECT coalesce(s.pending_reason, g.pending_reason) AS reason) why
    WHERE j.ending_as IS NULL AND NOT j.is_requeuing AND g.startable_at <= %(now)s
      AND NOT {IS_HELD} AND {_HELPED_BY_CELLS}
    GROUP BY s.id
    """


@dataclass(slots=True)
class PoolChanges:
    """Changes of a pool's tasks: by new state, first starts by latency, failures by reason."""

    states: dict[S, int] = field(default_factory=dict)
    latencies: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def count(self, *states: S) -> int:
        """Return the number of changes to one of `states`."""
        return sum(self.states.get(state, 0) for state in states)


@dataclass(slots=True)
class PoolResources:
    """`capacity`: of the READY cells of a pool; `used`: held by attempts on all its cells."""

    capacity: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellResources:
    """What a cell offers, and what attempts hold of it."""

    id: int
    pool_id: int
    state: CellState
    capacity: Mapping[str, int]
    used: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """What a sample depends on.

    `cursor`: where the sample before ended, and `sampled_at` when; None if there was none.
    `history_end`: the highest id in the history. `has_cells`: whether cells have samples of this
    minute.
    """

    has_waiting: bool
    has_held: bool
    cursor: str | None
    sampled_at: datetime | None
    history_end: int
    has_cells: bool


def load_sample_facts(name: str, minute: datetime) -> SampleFacts:
    """Return the facts for a sample with the cursor `name`, in one statement."""
    [found] = rows(
        f"""
        SELECT EXISTS (SELECT FROM controlplane_task t WHERE {WAITS}),
               EXISTS (SELECT FROM controlplane_attempt WHERE released_at IS NULL),
               w.after, w.scanned_at,
               (SELECT coalesce(max(id), 0) FROM controlplane_transition),
               EXISTS (SELECT FROM controlplane_cellsample WHERE at = %s)
        FROM (VALUES (%s)) AS v(name) LEFT JOIN controlplane_walk w ON w.name = v.name
        """,
        [minute, name],
    )
    return SampleFacts(*found)


def limit_range(after: int, until: int, limit: int) -> int:
    """Return the end of a range of the history that begins behind `after`: at most `until`.

    It has at most `limit` rows.
    """
    found = scalar(
        """
        SELECT id FROM controlplane_transition WHERE id > %s AND id <= %s
        ORDER BY id OFFSET %s LIMIT 1
        """,
        [after, until, limit - 1],
    )
    return until if found is None else int(found)


def count_changes(after: int, until: int) -> Mapping[int, PoolChanges]:
    """Return the changes in the history behind the row `after`, up to `until`, by pool."""
    parameters = {"after": after, "until": until, "bounds": list(BOUNDS)}
    pools: dict[int, PoolChanges] = defaultdict(PoolChanges)
    for row in named_rows(_CHANGES, parameters):
        pool = pools[row.pool_id]
        match row.kind:
            case "state":
                pool.states[S(int(row.key))] = row.number
            case "latency":
                pool.latencies[int(row.key)] = row.number
            case _:
                pool.failures[row.key] = {
                    "tasks": row.number,
                    "retried": row.retried,
                    "jobs": row.jobs,
                }
    return pools


def load_cell_resources(
    *, with_usage: bool
) -> tuple[list[CellResources], dict[int, PoolResources]]:
    """Return the resources of all cells, by id, and of all pools, also of pools without cells.

    `with_usage`: False if no attempt holds anything.
    """
    found = rows(
        """
        SELECT p.id, c.id, c.state, c.capacity
        FROM controlplane_pool p LEFT JOIN controlplane_cell c ON c.pool_id = p.id
        ORDER BY c.id, p.id
        """
    )
    usage = load_usage([cell_id for _, cell_id, *_ in found if cell_id]) if with_usage else {}
    cells = [
        CellResources(cell_id, pool_id, CellState(state), decoded(capacity), usage.get(cell_id, {}))
        for pool_id, cell_id, state, capacity in found
        if cell_id
    ]
    return cells, _sum_by_pool(cells, sorted({pool_id for pool_id, *_ in found}))


def _sum_by_pool(
    cells: Sequence[CellResources], pool_ids: Sequence[int]
) -> dict[int, PoolResources]:
    pools = {pool_id: PoolResources() for pool_id in pool_ids}
    for cell in cells:
        pool = pools[cell.pool_id]
        for name, amount in cell.used.items():
            pool.used[name] = pool.used.get(name, 0) + amount
        if cell.state is CellState.READY:
            for name, amount in cell.capacity.items():
                pool.capacity[name] = pool.capacity.get(name, 0) + amount
    return pools


def load_wanting(now: datetime) -> dict[int, dict[str, int]]:
    """Return by pool the resources that waiting tasks need which more cells could run."""
    pools: dict[int, dict[str, int]] = defaultdict(dict)
    for pool_id, resources, tasks in rows(_WANTING, {"now": now, "tasks": MAX_TASKS_OF_SHAPE}):
        for name, amount in _readable_amounts(decoded(resources)).items():
            pools[pool_id][name] = pools[pool_id].get(name, 0) + amount * tasks
    return dict(pools)


def _readable_amounts(resources: object) -> dict[str, int]:
    """Return the amounts of a shape: none if its row is invalid, which placement reports."""
    if not isinstance(resources, dict):
        return {}
    return {name: it for name, it in resources.items() if isinstance(it, int) and it > 0}
