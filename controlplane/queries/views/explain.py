"""Explain a task: its pending reasons, its position in the queue, and its reservation."""

from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.placement.reasons.pending import whereabouts
from controlplane.queries.schedules import find_instant_of
from controlplane.queries.sql import first_row, scalar
from controlplane.queries.views.queue_position import find_queue_place
from controlplane.queries.views.tasks import get_task_with_reasons

_KEPT = f"""
SELECT t.nominated_until, c.name FROM controlplane_task t
JOIN controlplane_cell c ON c.id = t.nominated_cell_id
WHERE t.id = %s AND t.state = {TaskState.PENDING:d} AND t.nominated_until > %s
"""

# The start of the last pass that considered all pending tasks of the job's pool.
_COVERED = """
SELECT LEAST(s.covered_at, p.uncovered_since) FROM controlplane_job j
JOIN controlplane_pool p ON p.id = j.pool_id
JOIN controlplane_tickstate s ON s.name = 'placement' AND s.covered_at IS NOT NULL
WHERE j.id = %s
"""


def explain_task(task_id: int, *, now: datetime) -> dict[str, Any]:
    """Return the explanation of one task, pending or not. Raise NotFound.

    `considered_at`: the start of the last placement pass that considered all pending tasks of its
    pool, if the task waited by then.
    """
    task, reasons = get_task_with_reasons(task_id, now=now)
    document: dict[str, Any] = {"task": task["id"], "job": task["job"], "state": task["state"]}
    document["schedule"] = find_instant_of(task["job"])
    if not reasons:
        reason = whereabouts(
            TaskState(task["state_number"]),
            cell=task["cell_id"],
            failure_reason=task["failure_reason"],
            origin=task["cache_origin"],
        )
        document |= {"text": reason["text"], "reason": reason, "also": []}
        return {**document, "queue": None, "considered_at": None, "nomination": None}
    place = find_queue_place(task_id, now=now)
    covered_at = scalar(_COVERED, [task["job"]])
    was_seen = covered_at is not None and covered_at >= task["updated_at"]
    kept = first_row(_KEPT, [task_id, now])
    return {
        **document,
        "text": reasons[0]["text"],
        "reason": reasons[0],
        "also": reasons[1:],
        "queue": None if place is None else place.as_document(),
        "considered_at": covered_at if was_seen else None,
        "nomination": {"cell": kept.name, "until": kept.nominated_until} if kept else None,
    }
