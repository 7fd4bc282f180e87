"""Cells as everybody sees them: what they have, and what of it is free."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.domain.errors import NotFound
from controlplane.domain.state.states import CellState
from controlplane.queries.cells.capacity import load_usage
from controlplane.queries.sql import decoded, rows
from controlplane.queries.views.amounts import free_of, shown_amounts

_COLUMNS = """
SELECT c.id, c.name, c.state, c.state_reason, pool.name, c.labels, c.tags, c.incarnation,
       c.capacity, c.drivers, c.task_types, l.last_heard_at, c.drain_deadline_at,
       c.quarantined_until, l.clock_ahead_seconds,
       c.state <> 'LOST' AND COALESCE(l.silent_ticks, 0) > 0
FROM controlplane_cell c
JOIN controlplane_pool pool ON pool.id = c.pool_id
LEFT JOIN controlplane_celllease l ON l.cell_id = c.id
"""


def list_cells(*, after: str | None, limit: int) -> list[dict[str, Any]]:
    """At most `limit` cells behind the name `after`, by name."""
    found = rows(
        f"{_COLUMNS} WHERE c.name > %s ORDER BY c.name LIMIT %s",
        [after or "", limit],
    )
    return _documents(found)


def get_cell(name: str) -> dict[str, Any]:
    """One cell. Raises NotFound."""
    found = rows(f"{_COLUMNS} WHERE c.name = %s", [name])
    if not found:
        raise NotFound(f"there is no cell {name}")
    return _documents(found)[0]


def _documents(found: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    used = load_usage([row[0] for row in found])
    return [_document(row, used.get(row[0], {})) for row in found]


def _document(row: tuple[Any, ...], used: Mapping[str, int]) -> dict[str, Any]:
    capacity: dict[str, int] = decoded(row[8])
    free = free_of(capacity, used)
    return {
        "name": row[1],
        "state": row[2],
        "state_reason": row[3],
        "pool": row[4],
        "labels": decoded(row[5]),
        "tags": row[6],
        "incarnation": row[7] or None,
        "capacity": shown_amounts(capacity),
        "free": shown_amounts(free),
        "drivers": row[9],
        "task_types": row[10],
        "last_seen_at": row[11],
        "drain_deadline_at": row[12] if row[2] == CellState.DRAINING else None,
        "quarantined_until": row[13],
        "clock_ahead_seconds": row[14],
        "silent": row[15],
    }
