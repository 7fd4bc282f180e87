"""Writes the shapes of submitted groups: equal ones meet in one row."""

import json
from collections.abc import Sequence

from controlplane.domain.placement.scheduling_key import ShapeKey
from controlplane.queries.sql import execute

# In the order of ids, so that two calls wait for each other only one way.
_INSERT = """
INSERT INTO controlplane_shape (
    id, pool_id, band, owner_id, project_id, resources, task_type, constraints, placement_tags,
    coscheduled, allow_unsatisfiable)
SELECT s.id, s.pool_id, s.band, s.owner_id, s.project_id, s.resources::jsonb, s.task_type,
    s.constraints::jsonb, ARRAY(SELECT jsonb_array_elements_text(s.tags::jsonb)), s.coscheduled,
    s.allow_unsatisfiable
FROM unnest(
    %(id)s::bigint[], %(pool_id)s::bigint[], %(band)s::smallint[], %(owner_id)s::bigint[],
    %(project_id)s::bigint[], %(resources)s::text[], %(task_type)s::text[],
    %(constraints)s::text[], %(tags)s::text[], %(coscheduled)s::bool[],
    %(allow_unsatisfiable)s::bool[]
) AS s (id, pool_id, band, owner_id, project_id, resources, task_type, constraints, tags,
    coscheduled, allow_unsatisfiable)
ORDER BY s.id
ON CONFLICT (id) DO NOTHING
"""


def insert_shapes(keys: Sequence[ShapeKey]) -> list[int]:
    """Write those that are new; the id of each, in order."""
    ids = [key.number() for key in keys]
    fresh = dict(zip(ids, keys, strict=True))
    chosen = sorted(fresh)
    columns = {
        "id": chosen,
        "resources": [json.dumps(dict(fresh[number].resources)) for number in chosen],
        "constraints": [
            json.dumps([item.as_dict() for item in fresh[number].constraints]) for number in chosen
        ],
        "tags": [json.dumps(sorted(fresh[number].placement_tags)) for number in chosen],
        **{
            name: [getattr(fresh[number], name) for number in chosen]
            for name in ("pool_id", "owner_id", "project_id", "task_type", "coscheduled")
        },
        "band": [int(fresh[number].band) for number in chosen],
        "allow_unsatisfiable": [fresh[number].allow_unsatisfiable for number in chosen],
    }
    if chosen:
        execute(_INSERT, columns)
    return ids
