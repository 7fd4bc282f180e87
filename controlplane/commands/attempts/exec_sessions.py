"""Sessions of users in running attempts: request, claim, end. The only writer of their state."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID, uuid4

import structlog
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.codec import clean_text
from controlplane.contract.exec_frames import check_command
from controlplane.contract.messages.orders import Orders
from controlplane.domain.cells import exec_sessions as rules
from controlplane.domain.cells.exec_sessions import ExecClaim, ExecState
from controlplane.domain.errors import Conflict, NotFound
from controlplane.outbox import cells
from controlplane.queries.attempts.exec_sessions import (
    STALE_SESSIONS,
    get_exec_session,
    load_exec_facts,
    load_exec_orders,
)
from controlplane.queries.cells.keys import load_addresses
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import execute, first_row, named_rows, rows
from controlplane.queries.task_facts import find_jobs_of_attempts
from controlplane.spec import Fault, InvalidSpec

log = structlog.get_logger(__name__)

# Sessions that one run of convergence ends.
MOST_ENDED = 1_000


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """The program that a user wants to run. `rows`, `columns`: of its terminal; 0: not known."""

    command: tuple[str, ...]
    tty: bool = False
    stdin: bool = False
    rows: int = 0
    columns: int = 0


def request_session(
    *, uid: UUID, wanted: ExecRequest, actor: str, token: str, now: datetime
) -> UUID:
    """Create a session in a running attempt and order it from the cell; return its uid.

    The audit log has the command. Raise InvalidSpec, NotFound, Conflict.
    """
    if (refusal := check_command(wanted.command)) is not None:
        raise InvalidSpec([Fault("command", refusal)])
    job_id = find_jobs_of_attempts([uid]).get(uid)
    if job_id is None:
        raise NotFound(f"there is no attempt {uid}")
    session = uuid4()

    def request() -> None:
        # The end of the attempt, and a result that the cache stores, take the same lock.
        lock_jobs([job_id])
        # Sessions of a user in several jobs are counted one after the other.
        rows("SELECT pg_advisory_xact_lock(hashtextextended('cellrun exec ' || %s, 0))", [actor])
        rules.check_request(load_exec_facts(uid, actor), now=now)
        execute(
            f"""
            INSERT INTO controlplane_execsession
                (uid, attempt_id, number, command, tty, stdin, rows, columns, actor, token, state,
                 cell_nonce, requested_at, client_seen_at, reason)
            SELECT %(uid)s, %(attempt)s, 1 + coalesce(max(number), 0), %(command)s::text[], %(tty)s,
                   %(stdin)s, %(rows)s, %(columns)s, %(actor)s, %(token)s,
                   {ExecState.REQUESTED:d}, '', %(now)s, %(now)s, ''
            FROM controlplane_execsession WHERE attempt_id = %(attempt)s
            """,
            {
                "uid": session,
                "attempt": uid,
                "command": list(wanted.command),
                "tty": wanted.tty,
                "stdin": wanted.stdin,
                "rows": wanted.rows,
                "columns": wanted.columns,
                "actor": actor,
                "token": token,
                "now": now,
            },
        )
        entry = AuditEntry(
            Action.EXEC_ATTEMPT,
            f"attempt {uid}",
            shlex.join(wanted.command),
            job_id=job_id,
            after={"session": str(session), "tty": wanted.tty, "stdin": wanted.stdin},
        )
        record(entry, actor=actor, now=now)
        transaction.on_commit(partial(_send_order, uid, session, now), robust=True)

    run_in_transaction(request)
    log.info("exec_requested", attempt=str(uid), session=str(session), job=job_id, by=actor)
    return session


def _send_order(uid: UUID, session: UUID, now: datetime) -> None:
    found = first_row("SELECT cell_id FROM controlplane_attempt WHERE uid = %s", [uid])
    addresses = {} if found is None else load_addresses([found.cell_id])
    orders = load_exec_orders(addresses.keys(), now=now)
    cells.send(
        (address, Orders(execs=(order,)).body())
        for cell_id, address in addresses.items()
        for order in orders.get(cell_id, ())
        if order.session == str(session)
    )


def claim_session(*, session: UUID, nonce: str, now: datetime) -> ExecClaim:
    """Give the session to the process of a cell that presents `nonce`, if no other one has it.

    The cell starts the program after NEW only. Raise NotFound.
    """
    with transaction.atomic():
        found = first_row(
            """
            SELECT state, cell_nonce, requested_at FROM controlplane_execsession
            WHERE uid = %s FOR NO KEY UPDATE
            """,
            [session],
        )
        if found is None:
            raise NotFound(f"there is no exec session {session}")
        claim = rules.decide_claim(
            ExecState(found.state),
            found.cell_nonce,
            nonce,
            expires=rules.expires_at(found.requested_at),
            now=now,
        )
        if claim is ExecClaim.NEW:
            execute(
                f"""
                UPDATE controlplane_execsession
                SET state = {ExecState.OPEN:d}, cell_nonce = %(nonce)s, opened_at = %(now)s,
                    cell_seen_at = %(now)s, client_seen_at = greatest(client_seen_at, %(now)s)
                WHERE uid = %(uid)s AND state = {ExecState.REQUESTED:d}
                """,
                {"uid": session, "nonce": nonce, "now": now},
            )
    return claim


def note_client(*, session: UUID, now: datetime) -> ExecState:
    """Record that the client is connected; return the state of the session. Raise NotFound."""
    return _note_side("client_seen_at", session, now)


def note_cell(*, session: UUID, now: datetime) -> ExecState:
    """Record that the cell is connected; return the state of the session. Raise NotFound."""
    return _note_side("cell_seen_at", session, now)


def _note_side(column: str, session: UUID, now: datetime) -> ExecState:
    found = first_row(
        f"""
        UPDATE controlplane_execsession
        SET {column} = CASE WHEN ended_at IS NULL THEN %s ELSE {column} END
        WHERE uid = %s RETURNING state
        """,
        [now, session],
    )
    if found is None:
        raise NotFound(f"there is no exec session {session}")
    return ExecState(found.state)


def end_session(*, session: UUID, now: datetime, reason: str, exit_code: int | None = None) -> bool:
    """End a session; return whether it had not ended before.

    `exit_code`: of its program, if that has ended.
    """
    ended = execute(
        f"""
        UPDATE controlplane_execsession
        SET state = {ExecState.ENDED:d}, ended_at = %(now)s, exit_code = %(code)s,
            reason = %(reason)s
        WHERE uid = %(uid)s AND ended_at IS NULL
        """,
        {
            "uid": session,
            "now": now,
            "code": exit_code,
            "reason": clean_text(reason, rules.MAX_REASON),
        },
    )
    if ended:
        log.info("exec_ended", session=str(session), exit_code=exit_code, reason=reason)
    return bool(ended)


def end_session_by_user(*, session: UUID, actor: str, now: datetime) -> None:
    """End a session on request of a user, with an audit line. Raise NotFound, Conflict."""
    with transaction.atomic():
        found = get_exec_session(session)
        if not end_session(session=session, now=now, reason=f"{actor} ended the session"):
            raise Conflict(f"exec session {session} has ended")
        entry = AuditEntry(
            Action.END_EXEC_SESSION,
            f"exec session {session}",
            f"of {found['actor']} in attempt {found['attempt']}",
            job_id=found["job"],
        )
        record(entry, actor=actor, now=now)


def end_stale_sessions(parameters: dict[str, object]) -> Sequence[UUID]:
    """End sessions without a claim, a client, a cell or an attempt; return their uids."""
    statement = f"""
        WITH stale AS MATERIALIZED (
            SELECT e.uid,
                   CASE WHEN a.uid IS NULL OR a.released_at IS NOT NULL THEN %(released)s
                        WHEN e.state = {ExecState.REQUESTED:d} THEN %(unclaimed)s
                        WHEN e.client_seen_at <= e.cell_seen_at THEN %(client_gone)s
                        ELSE %(cell_gone)s END AS reason
            {STALE_SESSIONS} ORDER BY e.uid LIMIT %(most)s FOR NO KEY UPDATE OF e
        )
        UPDATE controlplane_execsession e
        SET state = {ExecState.ENDED:d}, ended_at = %(now)s, reason = stale.reason
        FROM stale WHERE e.uid = stale.uid AND e.ended_at IS NULL
        RETURNING e.uid, stale.reason
        """
    texts = {
        "released": rules.RELEASED,
        "unclaimed": rules.UNCLAIMED,
        "client_gone": rules.CLIENT_GONE,
        "cell_gone": rules.CELL_GONE,
        "most": MOST_ENDED,
    }
    found = run_in_transaction(lambda: named_rows(statement, {**parameters, **texts}))
    for row in found:
        log.info("exec_ended", session=str(row.uid), reason=row.reason)
    return [row.uid for row in found]
