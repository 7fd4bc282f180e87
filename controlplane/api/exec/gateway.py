"""ASGI middleware for WebSockets: the streams of exec sessions, and no others.

It is in front of Django, because each stream would hold a thread there.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from types import MappingProxyType

import structlog
from django.db import InterfaceError, OperationalError

from controlplane.api.body_limit import Application, Receive, Scope, Send
from controlplane.api.exec import admission
from controlplane.api.exec.admission import StreamPeer, StreamRefusal
from controlplane.api.exec.connection import (
    UNAVAILABLE,
    ClientLeft,
    ExecConnection,
    send_bytes,
    send_state,
)
from controlplane.contract.exec_frames import CloseCode, ExecFrame, FrameKind, pack_frame
from controlplane.domain.cells.exec_sessions import STREAM_LOST
from controlplane.outbox.exec_streams import ExecStreams, Positions, Side, SideStreams, StreamLost

log = structlog.get_logger(__name__)

# Each takes up to 3 MiB and a connection to Redis.
MAX_CONNECTIONS = 256


_REASONS = MappingProxyType(
    {
        CloseCode.ENDED: "the session has ended",
        CloseCode.RESTART: "the web process restarts: connect again",
        CloseCode.TRY_AGAIN_LATER: "web cannot serve the stream now: connect again",
        CloseCode.MALFORMED: "a frame is malformed or missing",
        CloseCode.NOT_PERMITTED: "the session is of another user, or the permission was lost",
        CloseCode.UNKNOWN: "there is no such session",
        CloseCode.REPLACED: "another connection has the session",
    }
)


@dataclass(slots=True)
class _OpenStreams:
    """The streams of the running event loop, and the connections that use them."""

    loop: asyncio.AbstractEventLoop
    streams: ExecStreams


class ExecGateway:
    """ASGI middleware that handles WebSockets and passes on all other requests."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._open: _OpenStreams | None = None
        self._connections = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or one WebSocket until its end."""
        if scope["type"] != "websocket":
            await self._application(scope, receive, send)
            return
        try:
            await self._handle(scope, receive, send)
        except ClientLeft:
            pass
        except StreamRefusal as refusal:
            await _refuse(scope, refusal, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        if self._connections >= MAX_CONNECTIONS:
            raise StreamRefusal(CloseCode.TRY_AGAIN_LATER, status=503)
        self._connections += 1
        try:
            peer = await asyncio.to_thread(admission.admit, scope)
            await _accept(send)
            code = await self._serve(peer, scope, receive, send)
            if code is not None:
                await _close(send, code)
        except (OperationalError, InterfaceError) as fault:
            log.warning("exec_unavailable", error=str(fault))
            raise StreamRefusal(CloseCode.TRY_AGAIN_LATER, status=503) from None
        finally:
            self._connections -= 1
            await self._close_streams()

    async def _serve(
        self, peer: StreamPeer, scope: Scope, receive: Receive, send: Send
    ) -> CloseCode | None:
        """Serve an accepted connection; return the code to close it with."""
        try:
            opened = await self._begin(peer, scope)
        except StreamLost:
            if not peer.has_ended:
                log.warning("exec_stream_lost", session=str(peer.session), side=peer.side)
                await asyncio.to_thread(admission.end, peer.session, STREAM_LOST)
            return await _send_end(peer, CloseCode.ENDED, send)
        except StreamRefusal as refusal:
            return refusal.code
        except UNAVAILABLE as fault:
            log.warning("exec_unavailable", session=str(peer.session), error=str(fault))
            return CloseCode.TRY_AGAIN_LATER
        if opened is None:
            return await _send_end(peer, CloseCode.ENDED, send)
        streams, positions = opened
        if not positions.acked <= peer.after <= positions.last:
            return CloseCode.MALFORMED
        if peer.side is Side.CLIENT and not await send_state(send, peer.session):
            return CloseCode.UNKNOWN
        if peer.side is Side.CELL or positions.stored:  # the first one confirms its claim
            confirmed = ExecFrame(FrameKind.ACCEPTED, positions.stored)
            await send_bytes(send, pack_frame(confirmed))
        code = await ExecConnection(peer, streams, receive, send).run()
        return await _send_end(peer, code, send)

    async def _begin(self, peer: StreamPeer, scope: Scope) -> tuple[SideStreams, Positions] | None:
        """Open the streams of the session; None: a cell has nothing to do for an ended session.

        Raise StreamRefusal, StreamLost.
        """
        if peer.side is Side.CELL and peer.has_ended:
            return None
        streams, owner = self._streams(), token_hex(8)
        # Before the claim: after it, streams that are missing are lost.
        positions = None
        if peer.is_new:
            positions = await streams.open(peer.session, peer.side, owner, is_new=True)
        if peer.side is Side.CELL:
            await asyncio.to_thread(admission.claim, peer, scope["query_string"])
        if positions is None:
            positions = await streams.open(peer.session, peer.side, owner, is_new=False)
        return streams.of_side(peer.session, peer.side, owner), positions

    async def _close_streams(self) -> None:
        """Close the connections to Redis after the last WebSocket."""
        if self._connections or self._open is None:
            return
        closed, self._open = self._open, None
        with suppress(*UNAVAILABLE):
            await closed.streams.close()

    def _streams(self) -> ExecStreams:
        """Return the streams of this event loop."""
        loop = asyncio.get_running_loop()
        if self._open is None or self._open.loop is not loop:
            self._open = _OpenStreams(loop, ExecStreams())
        return self._open.streams


async def _send_end(peer: StreamPeer, code: CloseCode | None, send: Send) -> CloseCode | None:
    """Send the final document to a client whose session has ended; return the code."""
    if peer.side is Side.CELL or code is not CloseCode.ENDED:
        return code
    return code if await send_state(send, peer.session) else CloseCode.UNKNOWN


async def _accept(send: Send) -> None:
    try:
        await send({"type": "websocket.accept"})
    except OSError:
        raise ClientLeft from None


async def _close(send: Send, code: CloseCode) -> None:
    with suppress(OSError):
        await send({"type": "websocket.close", "code": int(code), "reason": _REASONS[code]})


async def _refuse(scope: Scope, refusal: StreamRefusal, send: Send) -> None:
    """Refuse a handshake with its status, or accept it and close it with the code."""
    with suppress(OSError, ClientLeft):
        if refusal.status is None:
            await _accept(send)
            await _close(send, refusal.code)
        elif "websocket.http.response" in scope.get("extensions", {}):
            headers = [(b"content-type", b"text/plain"), (b"content-length", b"0")]
            await send(
                {
                    "type": "websocket.http.response.start",
                    "status": refusal.status,
                    "headers": headers,
                }
            )
            await send({"type": "websocket.http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})
