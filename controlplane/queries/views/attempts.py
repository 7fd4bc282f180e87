"""Load attempts for the API and the admin, and facts to check an upload of a cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.errors import NotFound
from controlplane.domain.state.states import TERMINAL, text_of_reason
from controlplane.queries.cells.keys import KEY_COLUMNS, derive_keys
from controlplane.queries.sql import Row, decoded, first_row, named_rows, rows
from controlplane.queries.views.amounts import shown_text
from controlplane.queries.views.tasks import is_task

_COLUMNS = """
SELECT a.uid, a.task_id AS task, a.job_id AS job, a.number, a.state, NULLIF(a.phase, '') AS phase,
       a.progress, a.details ->> 'plugin_phase' AS plugin_phase, c.name AS cell_id,
       NULLIF(a.container_id, '') AS container_id, a.details -> 'addresses' AS addresses,
       a.exit_code, NULLIF(a.failure_kind, '') AS failure_kind, a.message AS failure_reason,
       a.reason, a.retry_rule, COALESCE(a.resources, g.resources)::text AS resources,
       a.usage, a.created_at, a.started_at, a.finished_at, a.released_at,
       NULLIF(a.release_kind, '') AS release_kind,
       (SELECT jsonb_agg(to_jsonb(s) ORDER BY s.number DESC) FROM (
            SELECT e.uid, e.number, e.actor, e.command, e.requested_at, e.ended_at, e.exit_code
            FROM controlplane_execsession e WHERE e.attempt_id = a.uid
            ORDER BY e.number DESC LIMIT 10) s) AS exec_sessions
FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
JOIN controlplane_job j ON j.id = a.job_id
JOIN controlplane_taskgroup g ON g.id = a.group_id
"""


@dataclass(frozen=True, slots=True)
class Uploader:
    """A cell that uploads. `owns_attempt`: whether the attempt belongs to the cell."""

    keys: tuple[bytes, ...]
    owns_attempt: bool


def list_attempts(task_id: int, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` attempts of a task below `before`, newest first. Raise NotFound."""
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


def list_rule_decisions(job_id: int, *, changes: int, limit: int) -> list[Row]:
    """Return the newest ends on which a retry rule decided, among the last `changes` of a job."""
    return named_rows(
        """
        SELECT r.task_id AS task, g.name || '.' || t.index AS name, a.uid, a.number, a.exit_code,
               a.reason, r.message, r.at
        FROM (
            SELECT id, task_id, attempt_uid, message, at FROM controlplane_transition
            WHERE job_id = %s ORDER BY id DESC LIMIT %s
        ) r
        JOIN controlplane_attempt a ON a.uid = r.attempt_uid AND a.retry_rule IS NOT NULL
        JOIN controlplane_task t ON t.id = r.task_id
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        WHERE r.message LIKE '%%of on_exit%%' ORDER BY r.id DESC LIMIT %s
        """,
        [job_id, changes, limit],
    )


def find_newest_attempts(task_ids: Sequence[int], *, each: int) -> list[UUID]:
    """Return the uids of the newest attempts of each task, at most `each`."""
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
    """Return one attempt, with `though_deleted` also of a deleted job. Raise NotFound."""
    row = first_row(
        f"{_COLUMNS} WHERE a.uid = %s AND (%s OR j.deleted_at IS NULL)", [uid, though_deleted]
    )
    if row is None:
        raise NotFound(f"there is no attempt {uid}")
    return _document(row)


def find_keys_for_group(cell: str, group_id: int) -> tuple[bytes, ...]:
    """Return the keys of a cell that has an unreleased attempt of the group.

    Return none without one, also if its key is revoked.
    """
    row = first_row(
        f"""
        SELECT {KEY_COLUMNS} FROM controlplane_cell c
        WHERE c.name = %s AND c.revoked_at IS NULL AND EXISTS (
            SELECT FROM controlplane_attempt a
            WHERE a.cell_id = c.id AND a.group_id = %s AND a.released_at IS NULL
        )
        """,
        [cell, group_id],
    )
    return () if row is None else derive_keys(cell, *row)


def find_uploader(cell: str, uid: UUID) -> Uploader | None:
    """Return the keys of a cell, and whether it owns the attempt.

    Return None if the cell is not enrolled, or its key is revoked.
    """
    row = first_row(
        f"""
        SELECT {KEY_COLUMNS}, EXISTS (
            SELECT FROM controlplane_attempt a WHERE a.uid = %s AND a.cell_id = c.id
        ) AS owns_attempt FROM controlplane_cell c WHERE c.name = %s AND c.revoked_at IS NULL
        """,
        [uid, cell],
    )
    if row is None:
        return None
    *salts, owns_attempt = row
    return Uploader(derive_keys(cell, *salts), owns_attempt)


def _document(row: Row) -> dict[str, Any]:
    document = row._asdict()
    reason, state = document.pop("reason"), TaskState(row.state)
    if state not in TERMINAL or state is TaskState.SUCCEEDED:
        document["failure_reason"] = ""
    elif not row.failure_reason:
        document["failure_reason"] = text_of_reason(reason)
    return {
        **document,
        "state": state.name,
        "addresses": decoded(row.addresses) or {},
        "resources": shown_text(row.resources),
        "usage": decoded(row.usage),
        "exec_sessions": decoded(row.exec_sessions) or [],
    }
