"""Attempts as everybody sees them, and what an upload from a cell is checked with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings

from controlplane.contract.states import TaskState
from controlplane.domain.cells.keys import cell_key
from controlplane.domain.errors import NotFound
from controlplane.domain.state.states import REASONS, TERMINAL, Reason
from controlplane.queries.sql import decoded, rows
from controlplane.queries.views.tasks import is_task

_COLUMNS = """
SELECT a.uid, a.task_id, a.job_id, a.number, a.state, a.phase, a.progress, c.name, a.container_id,
       a.exit_code, a.failure_kind, a.reason, a.message, a.usage, a.created_at, a.started_at,
       a.finished_at, a.released_at, a.release_kind,
       a.details -> 'addresses', a.details ->> 'plugin_phase'
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
    found = rows(
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
    found = rows(
        f"{_COLUMNS} WHERE a.uid = %s AND (%s OR j.deleted_at IS NULL)", [uid, though_deleted]
    )
    if not found:
        raise NotFound(f"there is no attempt {uid}")
    return _document(found[0])


def find_uploader(cell: str, uid: UUID) -> Uploader | None:
    """The key of an enrolled cell, and whether the attempt is its own; None: not enrolled."""
    found = rows(
        """
        SELECT c.key_salt, EXISTS (
            SELECT FROM controlplane_attempt a WHERE a.uid = %s AND a.cell_id = c.id
        ) FROM controlplane_cell c WHERE c.name = %s
        """,
        [uid, cell],
    )
    if not found:
        return None
    salt, owns_attempt = found[0]
    return Uploader(cell_key(settings.SECRET_KEY, name=cell, salt=salt), owns_attempt)


def _document(row: tuple[Any, ...]) -> dict[str, Any]:
    state = TaskState(row[4])
    return {
        "uid": row[0],
        "task": row[1],
        "job": row[2],
        "number": row[3],
        "state": state.name,
        "phase": row[5] or None,
        "progress": row[6],
        "plugin_phase": row[20],
        "cell_id": row[7],
        "container_id": row[8] or None,
        "addresses": decoded(row[19]) or {},
        "exit_code": row[9],
        "failure_kind": row[10] or None,
        "failure_reason": _failure_reason(state, row[11], row[12]),
        "usage": decoded(row[13]),
        "created_at": row[14],
        "started_at": row[15],
        "finished_at": row[16],
        "released_at": row[17],
        "release_kind": row[18] or None,
    }


def _failure_reason(state: TaskState, reason: str, message: str) -> str:
    if state not in TERMINAL or state is TaskState.SUCCEEDED:
        return ""
    if message:
        return message
    return REASONS[Reason(reason)] if reason in set(Reason) else reason
