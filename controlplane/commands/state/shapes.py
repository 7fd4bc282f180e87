"""Insert shapes, which placement uses instead of groups, and those of grown requests."""

from collections.abc import Hashable, Mapping, Sequence

from controlplane.commands.state.inserts import Columns, insert_rows
from controlplane.domain.constraints import Constraint
from controlplane.domain.placement.model.concurrency import ConcurrencyRule
from controlplane.domain.placement.scheduling_key import ShapeKey
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.states import Band
from controlplane.models import Shape
from controlplane.queries.sql import array_literal, encoded, rows


def insert_shapes(keys: Sequence[ShapeKey]) -> list[int]:
    """Insert new shapes; return the id of each key, in order. Equal keys share one row."""
    numbers: dict[Hashable, int] = {}  # a batch of jobs has few shapes
    ids = []
    for key in keys:
        identity = key.identity()
        if identity not in numbers:
            numbers[identity] = key.number()
        ids.append(numbers[identity])
    distinct = dict(zip(ids, keys, strict=True))
    shapes = list(distinct.values())
    constraints = [[item.as_dict() for item in shape.constraints] for shape in shapes]
    columns: Columns = {
        "id": ("bigint", list(distinct)),
        "pool_id": ("bigint", [shape.pool_id for shape in shapes]),
        "band": ("smallint", [int(shape.band) for shape in shapes]),
        "owner_id": ("bigint", [shape.owner_id for shape in shapes]),
        "project_id": ("bigint", [shape.project_id for shape in shapes]),
        "resources": ("jsonb", [encoded(dict(shape.resources)) for shape in shapes]),
        "task_type": ("text", [shape.task_type for shape in shapes]),
        "constraints": ("jsonb", [encoded(listed) for listed in constraints]),
        "placement_tags": (
            "text[]",
            [array_literal(sorted(shape.placement_tags)) for shape in shapes],
        ),
        "coscheduled": ("bool", [shape.coscheduled for shape in shapes]),
        "allow_unsatisfiable": ("bool", [shape.allow_unsatisfiable for shape in shapes]),
        "concurrency": (
            "jsonb",
            [
                None if shape.concurrency is None else encoded(shape.concurrency.as_dict())
                for shape in shapes
            ],
        ),
    }
    if shapes:
        # In the order of ids, so that two calls cannot deadlock.
        insert_rows(
            "controlplane_shape", columns, "ORDER BY r.id ON CONFLICT (id) DO NOTHING RETURNING id"
        )
    return ids


def key_of_shape(
    shape: Shape, *, band: Band | None = None, resources: Mapping[str, int] | None = None
) -> ShapeKey:
    """Return the key of a stored shape, in another band or with another request if given."""
    return ShapeKey(
        pool_id=shape.pool_id,
        band=Band(shape.band) if band is None else band,
        owner_id=shape.owner_id,
        project_id=shape.project_id,
        resources=shape.resources if resources is None else resources,
        task_type=shape.task_type,
        constraints=tuple(map(Constraint.read, shape.constraints)),
        placement_tags=shape.placement_tags,
        coscheduled=shape.coscheduled,
        allow_unsatisfiable=shape.allow_unsatisfiable,
        concurrency=None if shape.concurrency is None else ConcurrencyRule.read(shape.concurrency),
    )


def insert_grown_shapes(changes: Sequence[ChangeTask]) -> dict[int, int]:
    """Insert the shapes of grown requests; return the shape of each task that has one."""
    grown = {change.task_id: change.resources for change in changes if change.resources}
    if not grown:
        return {}  # the usual case
    shape_of = dict(
        rows("SELECT id, shape_id FROM controlplane_task WHERE id = ANY(%s)", [list(grown)])
    )
    shapes = Shape.objects.in_bulk(set(shape_of.values()))
    task_ids = [task_id for task_id in sorted(grown) if shape_of.get(task_id) in shapes]
    keys = [key_of_shape(shapes[shape_of[it]], resources=grown[it]) for it in task_ids]
    return dict(zip(task_ids, insert_shapes(keys), strict=True))
