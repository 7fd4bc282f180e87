"""Load cells for the API and the admin, with their capacity and the free part of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.domain.convergence.cell_health import describe_newest
from controlplane.domain.errors import NotFound
from controlplane.domain.state.states import CellState, Quarantine
from controlplane.queries.cells.capacity import load_usage
from controlplane.queries.cells.drain import DrainProgress, load_drains
from controlplane.queries.sql import Row, decoded, named_rows, scalar
from controlplane.queries.views.amounts import free_of, shown_amounts

_COLUMNS = f"""
SELECT c.id, c.name, c.state, c.state_reason, pool.name AS pool, c.labels, c.tags,
       c.node_labels, c.max_capacity, c.fixed_tags, c.mismatch,
       NULLIF(c.incarnation, '') AS incarnation, c.capacity, c.drivers, c.task_types,
       l.last_message_at AS last_seen_at, c.revoked_at, c.quarantined_until, l.clock_ahead_seconds,
       CASE WHEN c.state = '{CellState.DRAINING}' THEN c.drain_deadline_at END AS drain_deadline_at,
       c.state <> '{CellState.LOST}' AND COALESCE(l.silent_ticks, 0) > 0 AS silent
FROM controlplane_cell c
JOIN controlplane_pool pool ON pool.id = c.pool_id
LEFT JOIN controlplane_celllease l ON l.cell_id = c.id
"""

_NEWEST_FAILURE = f"""
SELECT a.message FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
WHERE a.cell_id = %s AND a.failure_kind = 'system'
  AND c.state = '{CellState.QUARANTINED}' AND c.quarantined_for = '{Quarantine.FAILURES}'
ORDER BY a.uid DESC LIMIT 1
"""


def list_cells(*, after: str | None, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` cells after the name `after`, by name."""
    found = named_rows(
        f"{_COLUMNS} WHERE c.name > %s ORDER BY c.name LIMIT %s",
        [after or "", limit],
    )
    return _documents(found)


def get_cell(name: str, *, with_failure: bool = False) -> dict[str, Any]:
    """Return one cell. Raise NotFound.

    `with_failure`: with the text of its newest system failure, of any project, if such failures
    are why it is QUARANTINED.
    """
    found = named_rows(f"{_COLUMNS} WHERE c.name = %s", [name])
    if not found:
        raise NotFound(f"there is no cell {name}")
    [document] = _documents(found)
    if with_failure:
        newest = scalar(_NEWEST_FAILURE, [document["id"]])
        document["state_reason"] = describe_newest(document["state_reason"], newest or "")
    return document


def _documents(found: Sequence[Row]) -> list[dict[str, Any]]:
    ids = [row.id for row in found]
    used, drains = load_usage(ids), load_drains(ids)
    return [_document(row, used.get(row.id, {}), drains.get(row.id)) for row in found]


def _document(row: Row, used: Mapping[str, int], drain: DrainProgress | None) -> dict[str, Any]:
    capacity: dict[str, int] = decoded(row.capacity)
    return {
        **row._asdict(),
        "labels": decoded(row.labels),
        "node_labels": decoded(row.node_labels),
        "max_capacity": shown_amounts(decoded(row.max_capacity)),
        "capacity": shown_amounts(capacity),
        "drain": drain
        and {
            "left": drain.left,
            "total": drain.total,
            "longest_until": drain.longest_until,
            "empty_since": drain.empty_since,
        },
        "free": shown_amounts(free_of(capacity, used)),
    }
