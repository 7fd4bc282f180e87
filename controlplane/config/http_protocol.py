"""Close connections whose clients do not send the header of a request in time.

uvicorn itself waits for a header without limit, so that a client could hold many connections open
with a few bytes each.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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
