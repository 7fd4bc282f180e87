"""Write pending reasons and clear nominations of waiting tasks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.effects import ExplainGroup, ExplainShape
from controlplane.domain.state.states import CellState
from controlplane.queries.holds import IS_HELD
from controlplane.queries.sql import encoded, execute

_EXPLAIN = """
WITH free AS MATERIALIZED (
    SELECT t.id, i.reason FROM controlplane_{table} t
    JOIN unnest(%s::bigint[], %s::text[]) AS i(id, reason) ON t.id = i.id
    ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE controlplane_{table} t SET pending_reason = free.reason::jsonb
FROM free WHERE t.id = free.id
"""


def explain(shapes: Sequence[ExplainShape], groups: Sequence[ExplainGroup]) -> None:
    """Write the changed pending reasons of shapes and of groups of gangs.

    Skip locked rows until the next pass: a reason is not worth waiting for a lock.
    """
    if shapes:
        found = [(item.shape_id, item.reason) for item in shapes]
        execute(_EXPLAIN.format(table="shape"), _columns(found))
    if groups:
        execute(
            _EXPLAIN.format(table="taskgroup"),
            _columns([(item.group_id, item.reason) for item in groups]),
        )


def _columns(reasons: Sequence[tuple[int, Mapping[str, Any] | None]]) -> list[list[Any]]:
    ids = [key for key, _ in reasons]
    return [ids, [None if reason is None else encoded(dict(reason)) for _, reason in reasons]]


def clear_nominations(*, now: datetime) -> int:
    """Clear nominations that expired, whose cell is not READY, or whose task may not be placed.

    The latter is no longer PENDING, or held.

    Return how many. Skip locked tasks, since jobs are not locked here; call this outside
    transactions that lock jobs.
    """
    return execute(
        f"""
        WITH over AS MATERIALIZED (
            SELECT t.id FROM controlplane_task t
            WHERE nominated_cell_id IS NOT NULL AND (
                nominated_until <= %s OR state <> {S.PENDING:d} OR NOT EXISTS (
                    SELECT FROM controlplane_cell c
                    WHERE c.id = t.nominated_cell_id AND c.state = %s)
                OR EXISTS (SELECT FROM controlplane_job j WHERE j.id = t.job_id AND {IS_HELD})
            )
            ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
        )
        UPDATE controlplane_task t SET nominated_cell_id = NULL, nominated_until = NULL
        FROM over WHERE t.id = over.id
        """,
        [now, CellState.READY.value],
    )
