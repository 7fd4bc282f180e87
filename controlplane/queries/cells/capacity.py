"""Cells as placement sees them: what they offer, and what unreleased attempts hold of them."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.constraints import Tags
from controlplane.domain.placement.model.snapshot import CellFacts
from controlplane.domain.state.states import CellState
from controlplane.queries.sql import decoded, rows

# Of these drivers a cell prepares only so many containers at once; others start in no time.
CONTAINER_DRIVERS = frozenset({"docker", "podman"})
# What occupies a start slot.
_PREPARING = (int(TaskState.ASSIGNED), int(TaskState.BUILDING))


def load_cells(pool_id: int) -> list[CellFacts]:
    """The cells of a pool that have ever registered, by id."""
    return _cells("c.pool_id = %s AND c.incarnation <> ''", [pool_id])


def lock_cells(cell_ids: Iterable[int]) -> dict[int, CellFacts]:
    """Lock cells, sorted by id, and read what is held of them now: the last word before placing."""
    ids = sorted(set(cell_ids))
    rows("SELECT id FROM controlplane_cell WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE", [ids])
    return {cell.cell_id: cell for cell in _cells("c.id = ANY(%s)", [ids])}


def load_usage(cell_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """What unreleased attempts hold of each cell: computed, never a stored counter."""
    held = rows(
        """
        SELECT h.cell_id, COALESCE(h.resources, g.resources), h.count FROM (
            SELECT cell_id, group_id, resources, count(*) FROM controlplane_attempt
            WHERE cell_id = ANY(%s) AND released_at IS NULL GROUP BY cell_id, group_id, resources
        ) h JOIN controlplane_taskgroup g ON g.id = h.group_id
        """,
        [list(cell_ids)],
    )
    return _sums_by_cell(held)


def load_reserved(cell_ids: Sequence[int], *, now: datetime) -> dict[int, dict[str, int]]:
    """Return what is reserved on each cell for tasks that wait."""
    found = rows(
        f"""
        SELECT n.cell_id, COALESCE(n.resources, g.resources), n.count FROM (
            SELECT nominated_cell_id AS cell_id, group_id, resources, count(*)
            FROM controlplane_task
            WHERE nominated_cell_id = ANY(%s) AND state = {TaskState.PENDING:d}
              AND nominated_until > %s
            GROUP BY 1, 2, 3
        ) n JOIN controlplane_taskgroup g ON g.id = n.group_id
        """,
        [list(cell_ids), now],
    )
    return _sums_by_cell(found)


def effective_reservation(reserved: int, used: int, capacity: int) -> int:
    """Return the part of a reservation for which the cell has room beside what is used."""
    return max(0, min(reserved, capacity - used))


def _sums_by_cell(found: Iterable[tuple[Any, ...]]) -> dict[int, dict[str, int]]:
    """Add up rows of a cell, a request, and the number of tasks with it there."""
    sums: dict[int, dict[str, int]] = {}
    for cell_id, resources, count in found:
        cell = sums.setdefault(cell_id, {})
        for name, amount in decoded(resources).items():
            cell[name] = cell.get(name, 0) + amount * count
    return sums


def _cells(condition: str, parameters: Sequence[Any]) -> list[CellFacts]:
    found = rows(
        f"""
        SELECT c.id, c.name,
               -- A silent cell whose loss is held gets no tasks: they could wait for an operator.
               CASE WHEN p.loss_held_at IS NOT NULL AND l.silent_ticks > 0 THEN 'LOST'
                    ELSE c.state END, c.incarnation, c.capacity, c.task_types, c.labels, c.tags,
               CASE WHEN c.drivers && %s::varchar[] THEN p.max_building_per_cell END
        FROM controlplane_cell c JOIN controlplane_pool p ON p.id = c.pool_id
        LEFT JOIN controlplane_celllease l ON l.cell_id = c.id
        WHERE {condition} ORDER BY c.id
        """,
        [sorted(CONTAINER_DRIVERS), *parameters],
    )
    used = load_usage([cell_id for cell_id, *_ in found])
    limited = [cell_id for cell_id, *_, most in found if most is not None]
    preparing = _count_preparing(limited)
    return [
        CellFacts(
            cell_id=cell_id,
            name=name,
            state=CellState(state),
            incarnation=incarnation,
            capacity=json.loads(capacity),
            used=used.get(cell_id, {}),
            task_types=frozenset(task_types),
            labels=decoded(labels),
            tags=Tags.read(tags),
            start_slots=None if most is None else max(most - preparing.get(cell_id, 0), 0),
        )
        for cell_id, name, state, incarnation, capacity, task_types, labels, tags, most in found
    ]


def _count_preparing(cell_ids: Sequence[int]) -> dict[int, int]:
    """By cell, the containers that it prepares or is about to."""
    if not cell_ids:
        return {}
    found = rows(
        """
        SELECT a.cell_id, count(*) FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id AND g.task_type = 'container'
        WHERE a.cell_id = ANY(%s) AND a.released_at IS NULL AND a.state = ANY(%s)
        GROUP BY a.cell_id
        """,
        [list(cell_ids), list(_PREPARING)],
    )
    return dict(found)
