"""The WebSocket of a session from the cell to the control plane, signed with the cell's key."""

import ssl
from collections.abc import Callable
from urllib.parse import urlencode

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from websockets.sync.client import ClientConnection, connect

from controlplane.contract.exec_frames import MAX_FRAME_BYTES
from controlplane.contract.exec_link import LinkOver
from controlplane.contract.exec_socket import (
    CLOSE_SECONDS,
    OPEN_SECONDS,
    SocketConnection,
    open_connection,
)
from controlplane.contract.wire import keys
from workers import clock
from workers.signatures import signed_headers


class CellConnector:
    """Opens the connections of a cell's sessions."""

    def __init__(
        self,
        *,
        control_url: str,
        cell: str,
        key: bytes,
        now: Callable[[], float] = clock.wall_seconds,
    ) -> None:
        """`control_url`: of web; with an empty one no connection succeeds."""
        self._url = control_url
        self._cell = cell
        self._key = keys.mac_key(key, keys.UPLOAD)
        self._now = now

    def connect(self, session: str, nonce: str, after: int) -> SocketConnection:
        """Return a new connection. Raise ConnectionLost, LinkOver."""
        if not self._url:
            raise LinkOver("this cell has no URL of web")
        query = urlencode({"after": after, "nonce": nonce})
        url = f"ws{self._url.removeprefix('http')}/api/v1/exec/{session}/cell?{query}"

        def open_socket() -> ClientConnection:
            context = None
            if url.startswith("wss:"):
                context = ssl.create_default_context(cafile=DEFAULT_CA_BUNDLE_PATH)
            return connect(
                url,
                ssl=context,
                additional_headers=signed_headers(
                    self._key, self._cell, url, b"", int(self._now())
                ),
                compression=None,
                proxy=None,
                open_timeout=OPEN_SECONDS,
                close_timeout=CLOSE_SECONDS,
                max_size=MAX_FRAME_BYTES,
            )

        return open_connection(open_socket, _refusal)


def _refusal(status: int, body: bytes) -> str:
    """Return the text for a refused session; the body is for the log of web only."""
    return f"web refused the session: HTTP status {status}"
