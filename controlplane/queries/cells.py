"""Cells as everybody sees them: what they have, and what of it is free."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.domain.errors import NotFound
from controlplane.queries.launches import decoded
from controlplane.queries.sql import rows

_COLUMNS = """
SELECT c.id, c.name, c.state, c.state_reason, pool.name, c.labels, c.tags, c.incarnation,
       c.capacity, c.drivers, c.task_types, l.last_heard_at
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
    used = _load_used([row[0] for row in found])
    return [_document(row, used.get(row[0], {})) for row in found]


def _load_used(cell_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """What unreleased attempts hold, by cell and resource."""
    found = rows(
        """
        SELECT h.cell_id, h.held, g.resources FROM (
            SELECT cell_id, group_id, count(*) AS held FROM controlplane_attempt
            WHERE released_at IS NULL AND cell_id = ANY(%s) GROUP BY cell_id, group_id
        ) h JOIN controlplane_taskgroup g ON g.id = h.group_id
        """,
        [list(cell_ids)],
    )
    used: dict[int, dict[str, int]] = {}
    for cell_id, held, resources in found:
        amounts = used.setdefault(cell_id, {})
        for name, amount in decoded(resources).items():
            amounts[name] = amounts.get(name, 0) + held * amount
    return used


def _document(row: tuple[Any, ...], used: Mapping[str, int]) -> dict[str, Any]:
    capacity: dict[str, int] = decoded(row[8])
    free = {name: max(amount - used.get(name, 0), 0) for name, amount in capacity.items()}
    return {
        "name": row[1],
        "state": row[2],
        "state_reason": row[3],
        "pool": row[4],
        "labels": decoded(row[5]),
        "tags": row[6],
        "incarnation": row[7] or None,
        "capacity": _shown(capacity),
        "free": _shown(free),
        "drivers": row[9],
        "task_types": row[10],
        "last_seen_at": row[11],
    }


def _shown(amounts: Mapping[str, int]) -> dict[str, float]:
    """Amounts with cpu in cores."""
    shown: dict[str, float] = {}
    for name, amount in amounts.items():
        if name == "cpu_millis":
            shown["cpu"] = amount / 1000
        else:
            shown[name] = amount
    return shown
