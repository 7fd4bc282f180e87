"""Cells as placement sees them: what they offer, and what unreleased attempts hold of them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from controlplane.contract.states import TaskState
from controlplane.domain.constraints import Tags
from controlplane.domain.placement.model.snapshot import CellFacts
from controlplane.domain.state.states import CellState
from controlplane.queries.sql import decoded, rows

# Of these drivers a cell prepares only so many containers at once; others start in no time.
CONTAINER_DRIVERS = frozenset({"docker", "podman"})
# What occupies a start slot.
_PREPARING = (int(TaskState.ASSIGNED), int(TaskState.BUILDING))


Amounts = dict[int, dict[str, int]]


class HeldAmounts(NamedTuple):
    """What unreleased attempts hold, by cell, by owner and by project."""

    cells: Amounts
    owners: Amounts
    projects: Amounts


def load_cells(pool_id: int) -> tuple[list[CellFacts], HeldAmounts]:
    """Return the cells of a pool that have ever registered, by id, and what is held of them."""
    return _cells("c.pool_id = %s AND c.incarnation <> ''", [pool_id])


def lock_cells(cell_ids: Iterable[int]) -> dict[int, CellFacts]:
    """Lock cells, sorted by id, and read what is held of them now: the last word before placing."""
    ids = sorted(set(cell_ids))
    rows(
        "SELECT id FROM controlplane_cell WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE",
        [ids],
        prepare=True,
    )
    cells, _ = _cells("c.id = ANY(%s)", [ids])
    return {cell.cell_id: cell for cell in cells}


def load_usage(cell_ids: Sequence[int]) -> Amounts:
    """What unreleased attempts hold of each cell: computed, never a stored counter."""
    return _load_held_amounts(cell_ids).cells


# Groups of one shape have one request, owner and project: those of any of them are read. OFFSET 0
# reads groups and jobs by their keys; with old statistics a join would read all there are.
_HELD = """
    SELECT u.cell_id, j.owner_id, j.project_id, COALESCE(u.resources, g.resources), u.count
    FROM (
        SELECT h.cell_id, s.shape_id, h.resources, min(h.group_id) AS group_id,
               sum(h.count)::bigint AS count
        FROM (
            SELECT cell_id, group_id, resources, count(*) FROM controlplane_attempt
            WHERE cell_id = ANY(%s) AND released_at IS NULL GROUP BY cell_id, group_id, resources
        ) h
        CROSS JOIN LATERAL (
            SELECT shape_id FROM controlplane_taskgroup WHERE id = h.group_id OFFSET 0) s
        GROUP BY 1, 2, 3
    ) u
    CROSS JOIN LATERAL (
        SELECT job_id, resources FROM controlplane_taskgroup WHERE id = u.group_id OFFSET 0) g
    CROSS JOIN LATERAL (
        SELECT owner_id, project_id FROM controlplane_job WHERE id = g.job_id OFFSET 0) j
    """


def _load_held_amounts(cell_ids: Sequence[int]) -> HeldAmounts:
    held = rows(_HELD, [list(cell_ids)], prepare=True)
    amounts = HeldAmounts({}, {}, {})
    for cell_id, owner_id, project_id, resources, count in held:
        request = decoded(resources)
        _add(amounts.cells, cell_id, request, count)
        _add(amounts.owners, owner_id, request, count)
        _add(amounts.projects, project_id, request, count)
    return amounts


def _add(sums: Amounts, key: int, request: Mapping[str, int], count: int) -> None:
    added = sums.setdefault(key, {})
    for name, amount in request.items():
        added[name] = added.get(name, 0) + amount * count


def load_reserved(cell_ids: Sequence[int], *, now: datetime) -> Amounts:
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
    reserved: Amounts = {}
    for cell_id, resources, count in found:
        _add(reserved, cell_id, decoded(resources), count)
    return reserved


def effective_reservation(reserved: int, used: int, capacity: int) -> int:
    """Return the part of a reservation for which the cell has room beside what is used."""
    return max(0, min(reserved, capacity - used))


def _cells(condition: str, parameters: Sequence[Any]) -> tuple[list[CellFacts], HeldAmounts]:
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
        prepare=True,
    )
    held = _load_held_amounts([cell_id for cell_id, *_ in found])
    limited = [cell_id for cell_id, *_, most in found if most is not None]
    preparing = _count_preparing(limited)
    # orjson, since each pass reads all cells: amounts are whole numbers below 2^53, labels texts.
    cells = [
        CellFacts(
            cell_id=cell_id,
            name=name,
            state=CellState(state),
            incarnation=incarnation,
            capacity=orjson.loads(capacity),
            used=held.cells.get(cell_id, {}),
            task_types=frozenset(task_types),
            labels=orjson.loads(labels),
            tags=Tags.read(tags),
            start_slots=None if most is None else max(most - preparing.get(cell_id, 0), 0),
        )
        for cell_id, name, state, incarnation, capacity, task_types, labels, tags, most in found
    ]
    return cells, held


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
