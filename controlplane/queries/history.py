"""The history of a job or a task, newest first."""

from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.errors import NotFound
from controlplane.domain.states import REASONS, Reason
from controlplane.queries.sql import rows

_COLUMNS = """
SELECT id, job_id, task_id, attempt_uid, from_state, to_state, attempt_state, reason, message,
       actor, at
FROM controlplane_transition
"""


def list_job_history(job_id: int, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Changes of a job and of all its tasks that are older than `before`. Raises NotFound."""
    found = _page("job_id", job_id, before, limit)
    if not found and not rows("SELECT 1 FROM controlplane_job WHERE id = %s", [job_id]):
        raise NotFound(f"there is no job {job_id}")
    return found


def list_task_history(task_id: int, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Changes of a task and its attempts that are older than `before`. Raises NotFound."""
    found = _page("task_id", task_id, before, limit)
    if not found and not rows("SELECT 1 FROM controlplane_task WHERE id = %s", [task_id]):
        raise NotFound(f"there is no task {task_id}")
    return found


def _page(column: str, value: int, before: int | None, limit: int) -> list[dict[str, Any]]:
    older = "" if before is None else "AND id < %s"
    parameters = [value, limit] if before is None else [value, before, limit]
    statement = f"{_COLUMNS} WHERE {column} = %s {older} ORDER BY id DESC LIMIT %s"
    return [_document(row) for row in rows(statement, parameters)]


def _document(row: tuple[Any, ...]) -> dict[str, Any]:
    reason = row[7]
    return {
        "id": row[0],
        "job": row[1],
        "task": row[2],
        "attempt_uid": row[3],
        "from_state": _name(row[4]),
        "to_state": _name(row[5]),
        "attempt_state": _name(row[6]),
        "reason": reason,
        "text": REASONS[Reason(reason)] if reason in set(Reason) else reason,
        "message": row[8],
        "actor": row[9],
        "at": row[10],
    }


def _name(number: int | None) -> str | None:
    return None if number is None else TaskState(number).name
