"""Load sessions of users in running attempts, for requests, streams, orders and pages."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from controlplane.contract.messages.orders import ExecOrder
from controlplane.contract.states import TaskState
from controlplane.domain.cells.exec_sessions import ExecFacts, ExecState, expires_at
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Place
from controlplane.domain.state.states import CellState
from controlplane.queries.sql import Row, first_row, named_rows

UNENDED_SESSIONS_OF_ATTEMPT = """
    SELECT count(*) FROM controlplane_execsession
    WHERE attempt_id = %(uid)s AND ended_at IS NULL
    """

_FACTS = f"""
    SELECT a.state, a.released_at IS NOT NULL AS is_released, a.stop_reason <> '' AS is_stopping,
           c.name AS cell, c.state AS cell_state, l.last_message_at AS cell_seen_at,
           p.name AS pool, p.exec_allowed AS is_allowed,
           ({UNENDED_SESSIONS_OF_ATTEMPT}) AS sessions_of_attempt,
           (SELECT count(*) FROM controlplane_execsession
            WHERE ended_at IS NULL AND actor = %(actor)s) AS sessions_of_user
    FROM controlplane_attempt a
    JOIN controlplane_job j ON j.id = a.job_id
    JOIN controlplane_pool p ON p.id = j.pool_id
    JOIN controlplane_cell c ON c.id = a.cell_id
    LEFT JOIN controlplane_celllease l ON l.cell_id = c.id
    WHERE a.uid = %(uid)s AND j.deleted_at IS NULL
    """


def load_exec_facts(uid: UUID, actor: str) -> ExecFacts:
    """Return what decides on a request for a session. Raise NotFound."""
    row = first_row(_FACTS, {"uid": uid, "actor": actor})
    if row is None:
        raise NotFound(f"there is no attempt {uid}")
    return ExecFacts(
        **{
            **row._asdict(),
            "state": TaskState(row.state),
            "cell_state": CellState(row.cell_state),
        }
    )


_COLUMNS = """
    SELECT e.uid, e.number, e.attempt_id AS attempt, a.task_id AS task, a.job_id AS job, e.command,
           e.tty, e.stdin, e.actor, e.token, e.state, e.requested_at, e.opened_at, e.ended_at,
           e.exit_code, e.reason
    FROM controlplane_execsession e
    JOIN controlplane_attempt a ON a.uid = e.attempt_id
    JOIN controlplane_job j ON j.id = a.job_id AND j.deleted_at IS NULL
    """


def get_exec_session(session: UUID) -> dict[str, Any]:
    """Return the document of a session. Raise NotFound."""
    row = first_row(f"{_COLUMNS} WHERE e.uid = %s", [session])
    if row is None:
        raise NotFound(f"there is no exec session {session}")
    return _document(row)


def list_exec_sessions(uid: UUID, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` sessions of an attempt below `before`, newest first."""
    found = named_rows(
        f"""
        {_COLUMNS} WHERE e.attempt_id = %s AND (%s::int IS NULL OR e.number < %s)
        ORDER BY e.number DESC LIMIT %s
        """,
        [uid, before, before, limit],
    )
    return [_document(row) for row in found]


def _document(row: Row) -> dict[str, Any]:
    return {**row._asdict(), "state": ExecState(row.state).name}


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What web checks of a session while a client or a cell is connected."""

    attempt_uid: UUID
    actor: str
    state: ExecState
    place: Place


def find_stream_facts(session: UUID) -> StreamFacts:
    """Return the facts of a session, also of one whose job was deleted. Raise NotFound."""
    row = first_row(
        """
        SELECT e.attempt_id, e.actor, e.state, j.project_id, p.domain_id, j.owner_id
        FROM controlplane_execsession e
        JOIN controlplane_attempt a ON a.uid = e.attempt_id
        JOIN controlplane_job j ON j.id = a.job_id
        JOIN controlplane_project p ON p.id = j.project_id
        WHERE e.uid = %s
        """,
        [session],
    )
    if row is None:
        raise NotFound(f"there is no exec session {session}")
    place = Place(row.project_id, row.domain_id, row.owner_id)
    return StreamFacts(row.attempt_id, row.actor, ExecState(row.state), place)


def load_exec_orders(cell_ids: Collection[int], *, now: datetime) -> dict[int, list[ExecOrder]]:
    """Return the orders of sessions that the cells have not claimed, by cell."""
    found = named_rows(
        f"""
        SELECT a.cell_id, e.attempt_id, e.uid, e.command, e.tty, e.stdin, e.rows, e.columns,
               e.requested_at
        FROM controlplane_execsession e
        JOIN controlplane_attempt a ON a.uid = e.attempt_id AND a.cell_id = ANY(%s)
        JOIN controlplane_cell c ON c.id = a.cell_id AND c.incarnation = a.incarnation
        WHERE e.ended_at IS NULL AND e.state = {ExecState.REQUESTED:d} AND a.released_at IS NULL
        ORDER BY e.requested_at
        """,
        [list(cell_ids)],
    )
    orders: dict[int, list[ExecOrder]] = {}
    for row in found:
        expires = expires_at(row.requested_at)
        if expires <= now:
            continue
        order = ExecOrder(
            uid=str(row.attempt_id),
            session=str(row.uid),
            command=tuple(row.command),
            tty=row.tty,
            stdin=row.stdin,
            expires=expires.timestamp(),
            rows=row.rows,
            columns=row.columns,
        )
        orders.setdefault(row.cell_id, []).append(order)
    return orders


STALE_SESSIONS = f"""
    FROM controlplane_execsession e LEFT JOIN controlplane_attempt a ON a.uid = e.attempt_id
    WHERE e.ended_at IS NULL AND (
        a.uid IS NULL OR a.released_at IS NOT NULL
        OR e.state = {ExecState.REQUESTED:d}
           AND e.requested_at <= %(now)s - make_interval(secs => %(exec_claim)s)
        OR e.state = {ExecState.OPEN:d}
           AND least(e.client_seen_at, e.cell_seen_at)
               <= %(now)s - make_interval(secs => %(exec_absence)s))
    """
"""Sessions that nothing else ends; see `domain.cells.exec_sessions`."""
