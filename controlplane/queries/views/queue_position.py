"""The position of a waiting task in its pool's queue, counted on request."""

from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.reasons.queue_position import (
    QueuedGroup,
    QueuePlace,
    find_place,
)
from controlplane.domain.state.states import Band
from controlplane.queries.holds import IS_HELD
from controlplane.queries.sql import rows

# The limit of groups that are counted exactly; beyond it the position is an estimate.
MAX_GROUPS = 2_000

_WAITS = f"""
t.state = {S.PENDING:d} AND NOT t.attempt_open AND NOT t.cache_blocked
AND (t.not_before IS NULL OR t.not_before <= %(now)s)
"""
_MAY_START = f"""
j.ending_as IS NULL AND NOT j.is_requeuing AND g.startable_at <= %(now)s AND NOT {IS_HELD}
"""

_OWN = f"""
SELECT j.pool_id, p.sequencer, t.shape_id, t.group_id, t.index, j.band, j.id, g.position,
       j.coscheduled AND j.started_at IS NOT NULL, j.parent_id IS NOT NULL, j.queue_rank
FROM controlplane_task t
JOIN controlplane_taskgroup g ON g.id = t.group_id
JOIN controlplane_job j ON j.id = t.job_id
JOIN controlplane_pool p ON p.id = j.pool_id
WHERE t.id = %(task)s AND {_WAITS} AND {_MAY_START}
"""
# Ordered as the index of waiting tasks, so that the limit ends the scan.
_GROUPS = f"""
SELECT t.shape_id, t.group_id, count(*) FROM controlplane_task t WHERE {_WAITS}
GROUP BY t.shape_id, t.group_id ORDER BY t.shape_id, t.group_id LIMIT %(limit)s
"""
_OF_POOL = f"""
SELECT j.band, j.coscheduled AND j.started_at IS NOT NULL, j.parent_id IS NOT NULL, j.id,
       g.position, w.count, j.name, j.queue_rank
FROM unnest(%(groups)s::bigint[], %(counts)s::int[]) AS w (group_id, count)
JOIN controlplane_taskgroup g ON g.id = w.group_id
JOIN controlplane_job j ON j.id = g.job_id
WHERE j.pool_id = %(pool)s AND {_MAY_START}
"""
_JOB = """
SELECT j.id, j.name FROM controlplane_taskgroup g JOIN controlplane_job j ON j.id = g.job_id
WHERE g.id = %s AND j.id <> %s
"""
_BEFORE = f"""
SELECT count(*) FROM controlplane_task t
WHERE {_WAITS} AND t.shape_id = ANY(%(shapes)s) AND t.group_id = %(group)s
  AND t.index < %(index)s
"""
# Group ids ascend by submission, which is nearly the order of jobs.
_ROUGH = f"""
SELECT coalesce(sum(w.count), 0),
       coalesce(sum(w.count) FILTER (WHERE s.band < %(band)s), 0)
       + coalesce(sum(w.ahead) FILTER (WHERE s.band = %(band)s), 0),
       {{nearest}}(w.nearest) FILTER (WHERE s.band = %(band)s)
FROM (
    SELECT t.shape_id, count(*),
           count(*) FILTER (WHERE t.group_id {{before}} %(group)s) AS ahead,
           {{nearest}}(t.group_id) FILTER (WHERE t.group_id {{before}} %(group)s) AS nearest
    FROM controlplane_task t WHERE {_WAITS} GROUP BY t.shape_id
) w JOIN controlplane_shape s ON s.id = w.shape_id AND s.pool_id = %(pool)s
"""


def find_queue_place(task_id: int, *, now: datetime) -> QueuePlace | None:
    """Return the task's position; None if it waits for something other than a place."""
    found = rows(_OWN, {"task": task_id, "now": now})
    if not found:
        return None
    pool, sequencer, shape, group, index, band, job, position, is_first, is_child, rank = found[0]
    own = QueuedGroup(Band(band), is_first, is_child, job, position, 0, rank=rank)
    listed = rows(_GROUPS, {"now": now, "limit": MAX_GROUPS + 1})
    # Several, if retry rules have increased requests of the group.
    shapes = {shape, *(shape_id for shape_id, group_id, _ in listed if group_id == group)}
    parameters = {
        "now": now,
        "pool": pool,
        "shapes": sorted(shapes),
        "group": group,
        "index": index,
    }
    [(before,)] = rows(_BEFORE, parameters)
    if len(listed) > MAX_GROUPS:
        return _estimate(sequencer, {**parameters, "band": band}, job, before)
    columns = {
        "groups": [group_id for _, group_id, _ in listed],
        "counts": [count for _, _, count in listed],
    }
    found = rows(_OF_POOL, {**parameters, **columns})
    groups = [QueuedGroup(Band(number), *rest) for number, *rest in found]
    return find_place(groups, own, before, sequencer)


def _estimate(sequencer: str, parameters: dict[str, Any], job: int, before: int) -> QueuePlace:
    """Estimate from group ids alone, as if all waiting tasks were startable."""
    how = (">", "min") if sequencer == "lifo" else ("<", "max")
    statement = _ROUGH.format(before=how[0], nearest=how[1])
    [(total, ahead, nearest)] = rows(statement, parameters)
    [(behind, name)] = rows(_JOB, [nearest, job]) or [(None, "")]
    return QueuePlace(int(ahead) + before + 1, int(total), behind, name, is_estimate=True)
