"""Load the artifacts of tasks: those of the last attempt that succeeded, or of the last attempt.

A task with a result from the cache has those of the attempt that populated the entry.
"""

from typing import Any
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.errors import NotFound
from controlplane.queries.attempts.artifacts import describe_artifacts
from controlplane.queries.sql import Row, first_row, named_rows
from controlplane.queries.views.jobs import is_job

_OUTPUTS = "COALESCE(e.outputs, a.details -> 'outputs')"

# The one place that decides which attempt's artifacts a task has.
_TASKS = f"""
SELECT t.id AS task, g.name AS "group", t.index, COALESCE(e.attempt_uid, a.uid) AS attempt,
       {_OUTPUTS} AS outputs
FROM controlplane_task t
JOIN controlplane_taskgroup g ON g.id = t.group_id
JOIN controlplane_job j ON j.id = t.job_id
LEFT JOIN controlplane_cacheentry e ON e.id = t.cache_entry_id
LEFT JOIN LATERAL (
    SELECT uid, details FROM controlplane_attempt WHERE task_id = t.id
    ORDER BY (state = {TaskState.SUCCEEDED:d}) DESC, number DESC LIMIT 1
) a ON true
WHERE j.deleted_at IS NULL
"""


def get_task_artifacts(task_id: int) -> dict[str, Any]:
    """Return a task with its artifacts. Raise NotFound."""
    row = first_row(f"{_TASKS} AND t.id = %s", [task_id])
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    return _document(row)


def find_attempt_with_artifacts(task_id: int) -> UUID:
    """Return the attempt whose artifacts the task has. Raise NotFound."""
    uid: UUID | None = get_task_artifacts(task_id)["attempt"]
    if uid is None:
        raise NotFound(f"task {task_id} has no attempt yet")
    return uid


def list_job_artifacts(
    job_id: int, *, group: str | None, after: int | None, limit: int
) -> list[dict[str, Any]]:
    """Return at most `limit` tasks of a job that have artifacts, with these. Raise NotFound."""
    found = named_rows(
        f"""
        {_TASKS} AND t.job_id = %s AND t.id > %s AND (%s::text IS NULL OR g.name = %s)
          AND jsonb_array_length({_OUTPUTS}) > 0
        ORDER BY t.id LIMIT %s
        """,
        [job_id, after or 0, group, group, limit],
    )
    if not found and not is_job(job_id):
        raise NotFound(f"there is no job {job_id}")
    return [_document(row) for row in found]


def _document(row: Row) -> dict[str, Any]:
    document = row._asdict()
    base = f"/api/v1/tasks/{row.task}/artifacts/"
    outputs = document.pop("outputs")
    return {**document, "artifacts": describe_artifacts(row.attempt, outputs, base=base)}
