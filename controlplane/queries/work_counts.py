"""Count open work by pool and band, by the partial indexes of waiting tasks and held attempts."""

from dataclasses import dataclass

from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.reasons.explain import NO_CELL_MATCHES
from controlplane.queries.sql import rows

_IS_STUCK = f"""
    (s.pending_reason ->> 'code' = '{NO_CELL_MATCHES}'
     OR coalesce((s.pending_reason ->> 'never_fits')::boolean, false))
    """

STUCK_SHAPES = f"SELECT s.id FROM controlplane_shape s WHERE {_IS_STUCK}"
"""The shapes whose tasks no cell of the pool can run, as placement last found."""


WAITS = f"t.state = {S.PENDING:d} AND NOT t.attempt_open"
"""Whether a task `t` waits for placement, as the index of waiting tasks has it."""

WAITING_SHAPES = f"""WITH RECURSIVE waiting AS (
    (SELECT t.shape_id FROM controlplane_task t WHERE {WAITS} ORDER BY t.shape_id LIMIT 1)
    UNION ALL
    SELECT (SELECT t.shape_id FROM controlplane_task t
            WHERE {WAITS} AND t.shape_id > waiting.shape_id ORDER BY t.shape_id LIMIT 1)
    FROM waiting WHERE waiting.shape_id IS NOT NULL
)"""
"""The shapes with waiting tasks, from one to the next by the index, however many tasks wait."""


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """Waiting tasks of a pool and band; `stuck`: those that no cell of the pool can run."""

    pool_id: int
    band: int
    waiting: int
    stuck: int


@dataclass(frozen=True, slots=True)
class HeldCount:
    """Attempts that hold capacity, by state; None: they have ended and are not released yet."""

    pool_id: int
    band: int
    state: S | None
    number: int


def count_waiting(limit: int | None = None) -> list[WaitingCount]:
    """Return the counts of waiting tasks, at most `limit` of them if it is set."""
    found = rows(
        f"""
        SELECT s.pool_id, s.band, sum(w.count)::bigint,
               coalesce(sum(w.count) FILTER (WHERE {_IS_STUCK}), 0)::bigint
        FROM (
            SELECT shape_id, count(*) FROM (
                SELECT shape_id FROM controlplane_task
                WHERE state = {S.PENDING:d} AND NOT attempt_open LIMIT %s) t
            GROUP BY shape_id
        ) w
        JOIN controlplane_shape s ON s.id = w.shape_id
        GROUP BY 1, 2 ORDER BY 1, 2
        """,
        [limit],
    )
    return [WaitingCount(*row) for row in found]


def count_held() -> list[HeldCount]:
    """Return the counts of unreleased attempts, whose number is limited by the cells."""
    found = rows(
        """
        SELECT s.pool_id, s.band, h.state, sum(h.count)::bigint
        FROM (
            SELECT group_id, CASE WHEN finished_at IS NULL THEN state END AS state, count(*)
            FROM controlplane_attempt WHERE released_at IS NULL GROUP BY 1, 2
        ) h
        JOIN controlplane_taskgroup g ON g.id = h.group_id
        JOIN controlplane_shape s ON s.id = g.shape_id
        GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        """
    )
    return [
        HeldCount(pool_id, band, None if state is None else S(state), number)
        for pool_id, band, state, number in found
    ]
