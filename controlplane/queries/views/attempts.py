"""Attempts for the API and the admin, and the facts to check an upload of a cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings

from controlplane.contract.states import TaskState
from controlplane.domain.cells.keys import cell_key
from controlplane.domain.errors import NotFound
from controlplane.domain.state.states import REASONS, TERMINAL, Reason
from controlplane.queries.sql import Row, decoded, first_row, named_rows, rows
from controlplane.queries.views.tasks import is_task

_COLUMNS = """
SELECT a.uid, a.task_id, a.job_id, a.number, a.state, a.phase, a.progress, c.name AS cell,
       a.container_id,
       a.exit_code, a.failure_kind, a.reason, a.message, a.usage, a.created_at, a.started_at,
       a.finished_at, a.released_at, a.release_kind,
       a.details -> 'addresses' AS addresses, a.details ->> 'plugin_phase' AS plugin_phase
FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
JOIN controlplane_job j ON j.id = a.job_id
"""


@dataclass(frozen=True, slots=True)
class Uploader:
    """A cell that wants to upload. `owns_attempt`: the attempt is one of its own."""

    key: bytes
    owns_attempt: bool


def list_attempts(task_id: int, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """At most `limit` attempts of a task before number `before`, newest first. Raises NotFound."""
    found = named_rows(
        f"""
        {_COLUMNS} WHERE a.task_id = %s AND j.deleted_at IS NULL
          AND (%s::int IS NULL OR a.number < %s)
        ORDER BY a.number DESC LIMIT %s
        """,
        [task_id, before, before, limit],
    )
    if not found and not is_task(task_id):
        raise NotFound(f"there is no task {task_id}")
    return [_document(row) for row in found]


def find_newest_attempts(task_ids: Sequence[int], *, each: int) -> list[UUID]:
    """Uids of the newest attempts of each of the tasks, at most `each`."""
    found = rows(
        """
        SELECT a.uid FROM unnest(%s::bigint[]) AS t(id) CROSS JOIN LATERAL (
            SELECT uid FROM controlplane_attempt WHERE task_id = t.id ORDER BY number DESC LIMIT %s
        ) a
        """,
        [list(task_ids), each],
    )
    return [uid for (uid,) in found]


def get_attempt(uid: UUID, *, though_deleted: bool = False) -> dict[str, Any]:
    """One attempt. Raises NotFound. `though_deleted`: also of a deleted job, for operators."""
    row = first_row(
        f"{_COLUMNS} WHERE a.uid = %s AND (%s OR j.deleted_at IS NULL)", [uid, though_deleted]
    )
    if row is None:
        raise NotFound(f"there is no attempt {uid}")
    return _document(row)


def find_uploader(cell: str, uid: UUID) -> Uploader | None:
    """The key of an enrolled cell, and whether the attempt is its own; None: not enrolled."""
    row = first_row(
        """
        SELECT c.key_salt, EXISTS (
            SELECT FROM controlplane_attempt a WHERE a.uid = %s AND a.cell_id = c.id
        ) AS owns_attempt FROM controlplane_cell c WHERE c.name = %s
        """,
        [uid, cell],
    )
    if row is None:
        return None
    key = cell_key(settings.SECRET_KEY, name=cell, salt=row.key_salt)
    return Uploader(key, row.owns_attempt)


def _document(row: Row) -> dict[str, Any]:
    state = TaskState(row.state)
    return {
        "uid": row.uid,
        "task": row.task_id,
        "job": row.job_id,
        "number": row.number,
        "state": state.name,
        "phase": row.phase or None,
        "progress": row.progress,
        "plugin_phase": row.plugin_phase,
        "cell_id": row.cell,
        "container_id": row.container_id or None,
        "addresses": decoded(row.addresses) or {},
        "exit_code": row.exit_code,
        "failure_kind": row.failure_kind or None,
        "failure_reason": _failure_reason(state, row.reason, row.message),
        "usage": decoded(row.usage),
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "released_at": row.released_at,
        "release_kind": row.release_kind or None,
    }


def _failure_reason(state: TaskState, reason: str, message: str) -> str:
    if state not in TERMINAL or state is TaskState.SUCCEEDED:
        return ""
    if message:
        return message
    return REASONS[Reason(reason)] if reason in set(Reason) else reason
