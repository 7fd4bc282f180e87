"""Load what can ever run in a pool, for requests that retry rules may increase."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from controlplane.domain.jobs.bands import LimitedScope
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import ShapeFacts
from controlplane.domain.scopes import scopes_of
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.growth import GrowthRoom
from controlplane.models import Pool
from controlplane.queries.jobs.submission import CELL_MATCHES, find_offered_cells
from controlplane.queries.placement.quotas import find_limits
from controlplane.queries.sql import decoded, named_rows

# The different capacities of the cells that may run tasks of each shape, in any state.
_ROOM = f"""
SELECT s.task_id, s.pool, s.validators, s.tokens, s.owner_id, s.project_id, s.domain_id,
       c.capacities
FROM (
    SELECT t.id AS task_id, t.shape_id, o.name AS pool, o.validators, o.tokens, h.owner_id,
           h.project_id, p.domain_id
    FROM controlplane_task t
    JOIN controlplane_shape h ON h.id = t.shape_id AND NOT h.allow_unsatisfiable
    JOIN controlplane_pool o ON o.id = h.pool_id
    JOIN controlplane_project p ON p.id = h.project_id
    WHERE t.id = ANY(%(tasks)s)
) s
JOIN (
    SELECT s.id, (
        SELECT COALESCE(jsonb_agg(DISTINCT c.capacity), '[]') FROM controlplane_cell c
        WHERE c.capacity <> '{{}}' AND {CELL_MATCHES}
    ) AS capacities
    FROM (
        SELECT id, pool_id, task_type, to_jsonb(placement_tags) AS tags,
               jsonb_path_query_array(constraints, '$[*] ? (@.required == true)') AS constraints
        FROM controlplane_shape
        WHERE id IN (SELECT shape_id FROM controlplane_task WHERE id = ANY(%(tasks)s))
    ) s
) c ON c.id = s.shape_id
"""


def with_growth_room(facts: Iterable[TaskFacts]) -> dict[int, TaskFacts]:
    """Return by task id those of `facts` that a retry rule may let grow, with their room.

    Without such a task there is no statement. A task whose job allows unsatisfiable requests has no
    bounds.
    """
    growing = [item for item in facts if any(rule.growth for rule in item.retry_rules)]
    if not growing:
        return {}  # the usual case
    rooms = _load_rooms([item.task_id for item in growing])
    return {item.task_id: replace(item, room=rooms.get(item.task_id)) for item in growing}


def load_room(shape: ShapeFacts, pool: Pool) -> GrowthRoom:
    """Return the room for tasks of a shape that is not stored yet."""
    cells = find_offered_cells([pool.pk]).get(pool.pk, ())
    usable = CapacityMatrix(cells, [shape], pool.tokens).usable(shape)
    capacities = [cell.capacity for cell, is_usable in zip(cells, usable, strict=True) if is_usable]
    limits = _limits_of(pool.validators, find_limits(shape.scopes()))
    return GrowthRoom(pool.name, tuple(capacities), tuple(limits), frozenset(pool.tokens))


def _load_rooms(task_ids: list[int]) -> dict[int, GrowthRoom]:
    found = named_rows(_ROOM, {"tasks": task_ids})
    scopes = {row.task_id: scopes_of(row.owner_id, row.project_id, row.domain_id) for row in found}
    limits = {item.scope: item for item in find_limits({s for its in scopes.values() for s in its})}
    return {
        row.task_id: GrowthRoom(
            row.pool,
            tuple(decoded(row.capacities)),
            tuple(_limits_of(row.validators, [limits[it] for it in scopes[row.task_id]])),
            frozenset(decoded(row.tokens)),
        )
        for row in found
    }


def _limits_of(
    validators: Iterable[str], limits: Iterable[LimitedScope]
) -> Iterator[tuple[str, str, int]]:
    """Yield title, resource and limit of the quotas that a pool with `validators` enforces."""
    policy = PoolPolicy(validators=tuple(validators))
    for item in limits:
        binding = policy.binding(item.scope.kind, item.limits)
        for name, limit in sorted(binding.resources.items()):
            yield f"{item.scope.kind} {item.name}", name, limit
