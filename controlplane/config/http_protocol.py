"""Close connections whose clients do not send the header of a request in time, or a malformed one.

uvicorn itself waits for a header without limit, and leaves a connection open whose header its
WebSocket library refuses, so that a client could hold many connections open without a token.
"""

import asyncio
from http import HTTPStatus

import h11
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

HEADER_SECONDS = 10.0


class PromptHeaders(H11Protocol):
    """HTTP/1.1 (uvicorn's `--http`) with a limit of time for the header of each request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Begin to wait with the first bytes of a request; stop when its header is complete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_header()
        else:
            self._stop_waiting()

    def _wait_for_header(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


class PromptWebSockets(WebSocketsSansIOProtocol):
    """WebSockets (uvicorn's `--ws`) that end at once what the library or the application refuses.

    PromptHeaders passes the whole header of a handshake at once.
    """

    def data_received(self, data: bytes) -> None:
        """Answer and close a connection whose first bytes are no handshake."""
        super().data_received(data)
        if not self.handshake_initiated:
            self._refuse_handshake()

    def send_receive_event_to_app(self) -> None:
        """Close the connection after a text that is not UTF-8; uvicorn logs a traceback."""
        if self.curr_msg_data_type == "text" and not self.close_sent and not self._is_utf8():
            self.frames = []
            self.conn.fail(CloseCode.INVALID_DATA, "a text is not UTF-8")
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        """Send an event of the application. Raise ClientDisconnected, also while closing."""
        await self.writable.wait()
        if self.close_sent and self.transport.is_closing():
            raise ClientDisconnected
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # Otherwise uvicorn logs that the application has not completed the handshake.
            self.handshake_complete = True

    def _refuse_handshake(self) -> None:
        output = b"".join(self.conn.data_to_send())
        if not output:  # the library has an answer to some errors only
            output = self.conn.reject(HTTPStatus.BAD_REQUEST, "").serialize()
        self.handshake_complete = self.close_sent = True
        self.transport.write(output)
        self.transport.close()

    def _is_utf8(self) -> bool:
        try:
            b"".join(self.frames).decode()
        except UnicodeDecodeError:
            return False
        return True
