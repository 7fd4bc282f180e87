"""Admit clients and cells to the streams of exec sessions, and check them while they are connected.

The functions run in threads: they read the database.
"""

import re
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.http import QueryDict
from django.utils.datastructures import CaseInsensitiveMapping
from rest_framework.exceptions import AuthenticationFailed, Throttled

from controlplane import clock
from controlplane.api import charges
from controlplane.api.body_limit import Scope
from controlplane.api.exec.schemas import ExecDocument
from controlplane.api.origins import find_origin
from controlplane.api.refused_tokens import note_refusal
from controlplane.api.streams.connections import check_token, close_database, read_token
from controlplane.commands.attempts import exec_sessions
from controlplane.commands.attempts.logs import BadUpload, check_signature
from controlplane.commands.audit import bind_origin
from controlplane.contract.exec_frames import MAX_POSITION, CloseCode
from controlplane.domain.cells.exec_sessions import NOT_PERMITTED, ExecClaim, ExecState
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Permission, may
from controlplane.limits.addresses import find_network
from controlplane.outbox.exec_streams import Side
from controlplane.queries.attempts.exec_sessions import (
    StreamFacts,
    find_stream_facts,
    get_exec_session,
)
from controlplane.queries.tenancy.access import load_access
from controlplane.queries.views.attempts import find_uploader

PATH = re.compile(
    r"/api/v1/exec/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/(stream|cell)", re.ASCII
)
_NONCE = re.compile(r"[0-9a-f]{16,64}", re.ASCII)
_POSITION = re.compile(r"[0-9]{1,19}", re.ASCII)
_NO_BODY = sha256().hexdigest()
# What a stream costs a client between two checks, as a followed log does.
_STREAM_UNITS = 2.0


class StreamRefusal(Exception):
    """The connection is refused or ended. `status`: of a handshake that is not accepted."""

    def __init__(self, code: CloseCode, *, status: int | None = None) -> None:
        super().__init__(code.name)
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class StreamPeer:
    """An admitted connection. `after`: the last frame that it has consumed.

    `is_new`: whether the cell has not claimed the session. `token`: of a client; `cell`, `key`: the
    name of a cell and the key that it signed with.
    """

    session: UUID
    attempt_uid: UUID
    side: Side
    after: int
    is_new: bool
    has_ended: bool
    token: bytes = b""
    cell: str = ""
    key: bytes = b""


def admit(scope: Scope) -> StreamPeer:
    """Return the peer of a handshake. Raise StreamRefusal."""
    match = PATH.fullmatch(scope["path"])
    if match is None:
        raise StreamRefusal(CloseCode.UNKNOWN, status=404)
    session, query = UUID(match[1]), QueryDict(scope["query_string"])
    try:
        if match[2] == "stream":
            return _admit_client(scope, session, _read_after(query))
        return _admit_cell(scope, session, query)
    except NotFound:
        raise StreamRefusal(CloseCode.UNKNOWN) from None
    except Throttled:
        raise StreamRefusal(CloseCode.TRY_AGAIN_LATER, status=429) from None
    finally:
        close_database()


def _read_after(query: QueryDict) -> int:
    text = query.get("after") or "0"
    if not _POSITION.fullmatch(text) or int(text) > MAX_POSITION:
        raise StreamRefusal(CloseCode.MALFORMED, status=400)
    return int(text)


def _admit_client(scope: Scope, session: UUID, after: int) -> StreamPeer:
    token = read_token(scope)
    try:
        credential = check_token(token)
    except AuthenticationFailed as fault:
        caller = _caller_of(scope)
        if token is not None:
            with bind_origin(partial(find_origin, caller)):
                note_refusal(caller, fault)
        charges.admit_key(f"address {find_network(caller)}")
        raise StreamRefusal(CloseCode.NOT_PERMITTED, status=401) from None
    charges.admit_credential(credential)
    facts = find_stream_facts(session)
    access = load_access(credential)
    if not may(access, Permission.READ, facts.place):
        raise StreamRefusal(CloseCode.UNKNOWN)
    if credential.user.get_username() != facts.actor:
        raise StreamRefusal(CloseCode.NOT_PERMITTED)
    if not may(access, Permission.EXEC, facts.place):
        raise StreamRefusal(CloseCode.NOT_PERMITTED)
    state = exec_sessions.note_client(session=session, now=clock.now())
    return _peer(session, facts, Side.CLIENT, after, state, token=token or b"")


def _admit_cell(scope: Scope, session: UUID, query: QueryDict) -> StreamPeer:
    headers = _headers_of(scope)
    cell, path = headers.get("X-Cellrun-Cell", ""), scope["raw_path"].decode("latin-1")
    if scope["query_string"]:
        path = f"{path}?{scope['query_string'].decode('latin-1')}"
    try:
        facts = find_stream_facts(session)
    except NotFound:
        charges.admit_key(f"address {find_network(_caller_of(scope))}")
        raise
    try:
        signature = check_signature(
            cell=cell,
            time=headers.get("X-Cellrun-Time", ""),
            mac=headers.get("X-Cellrun-Mac", ""),
            path=path,
            digest=_NO_BODY,
            uid=facts.attempt_uid,
            now=clock.now(),
        )
    except BadUpload:
        charges.admit_key(f"address {find_network(_caller_of(scope))}")
        raise StreamRefusal(CloseCode.NOT_PERMITTED, status=401) from None
    if not signature.owns_attempt:
        raise StreamRefusal(CloseCode.UNKNOWN)
    after, nonce = _read_after(query), query.get("nonce") or ""
    if not _NONCE.fullmatch(nonce):
        raise StreamRefusal(CloseCode.MALFORMED, status=400)
    return _peer(session, facts, Side.CELL, after, facts.state, cell=cell, key=signature.key)


def _peer(
    session: UUID, facts: StreamFacts, side: Side, after: int, state: ExecState, **of_side: Any
) -> StreamPeer:
    is_new, has_ended = state is ExecState.REQUESTED, state is ExecState.ENDED
    return StreamPeer(session, facts.attempt_uid, side, after, is_new, has_ended, **of_side)


def claim(peer: StreamPeer, query_string: bytes) -> None:
    """Claim the session for the process of the cell. Raise StreamRefusal."""
    nonce = QueryDict(query_string).get("nonce") or ""
    try:
        claimed = exec_sessions.claim_session(session=peer.session, nonce=nonce, now=clock.now())
    except NotFound:
        raise StreamRefusal(CloseCode.UNKNOWN) from None
    finally:
        close_database()
    if claimed is ExecClaim.REFUSED:
        raise StreamRefusal(CloseCode.REPLACED)


def check(peer: StreamPeer) -> ExecState:
    """Record that the peer is connected; return the state of the session. Raise StreamRefusal.

    A client without a valid token or without its role ends the session.
    """
    now = clock.now()
    try:
        if peer.side is Side.CELL:
            uploader = find_uploader(peer.cell, peer.attempt_uid)
            if uploader is None or peer.key not in uploader.keys or not uploader.owns_attempt:
                raise StreamRefusal(CloseCode.NOT_PERMITTED)
            return exec_sessions.note_cell(session=peer.session, now=now)
        if not _is_permitted(peer):
            exec_sessions.end_session(session=peer.session, now=now, reason=NOT_PERMITTED)
            raise StreamRefusal(CloseCode.NOT_PERMITTED)
        return exec_sessions.note_client(session=peer.session, now=now)
    except NotFound:
        raise StreamRefusal(CloseCode.UNKNOWN) from None
    except Throttled:
        raise StreamRefusal(CloseCode.TRY_AGAIN_LATER) from None
    finally:
        close_database()


def _is_permitted(peer: StreamPeer) -> bool:
    try:
        credential = check_token(peer.token)
    except AuthenticationFailed:
        return False
    charges.admit_credential(credential, _STREAM_UNITS)
    place = find_stream_facts(peer.session).place
    return may(load_access(credential), Permission.EXEC, place)


def end(session: UUID, reason: str, exit_code: int | None = None) -> None:
    """End a session."""
    try:
        exec_sessions.end_session(
            session=session, now=clock.now(), reason=reason, exit_code=exit_code
        )
    finally:
        close_database()


def read_state(session: UUID) -> bytes | None:
    """Return the document of a session as JSON; None if it is deleted."""
    try:
        document = ExecDocument.model_validate(get_exec_session(session))
        return document.model_dump_json().encode()
    except NotFound:
        return None
    finally:
        close_database()


def _headers_of(scope: Scope) -> CaseInsensitiveMapping[str]:
    return CaseInsensitiveMapping(
        {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    )


def _caller_of(scope: Scope) -> Any:
    """Return what `limits.addresses` reads of a request."""
    address, *_ = scope.get("client") or ("",)
    return SimpleNamespace(
        headers=_headers_of(scope), META={"REMOTE_ADDR": address}, path=scope["path"]
    )
