"""The WebSocket of a session from the cell to the control plane, signed with the cell's key."""

import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from urllib.parse import urlencode

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from controlplane.contract.exec_frames import MAX_FRAME_BYTES
from controlplane.contract.exec_link import FINAL_CODES, ConnectionLost, LinkOver
from controlplane.contract.wire import keys
from workers import clock
from workers.log_uploads import upload_headers

OPEN_SECONDS = 10.0
CLOSE_SECONDS = 1.0
REPEATABLE = (408, 429)  # statuses of the handshake below 500 that are not final


class CellConnection:
    """See LinkConnection in controlplane.contract.exec_link."""

    def __init__(self, stack: ExitStack, socket: ClientConnection) -> None:
        self._stack = stack
        self._socket = socket

    def send(self, message: bytes) -> None:
        """Send a message."""
        try:
            self._socket.send(message)
        except ConnectionClosed as closed:
            raise _meaning_of(closed) from closed
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self, seconds: float) -> bytes | None:
        """Return the next message."""
        try:
            message = self._socket.recv(seconds)
        except TimeoutError:
            return None
        except ConnectionClosed as closed:
            raise _meaning_of(closed) from closed
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        return message if isinstance(message, bytes) else message.encode()

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._stack.close()


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

    def connect(self, session: str, nonce: str, after: int) -> CellConnection:
        """Return a new connection. Raise ConnectionLost, LinkOver."""
        if not self._url:
            raise LinkOver("this cell has no URL of web")
        query = urlencode({"after": after, "nonce": nonce})
        url = f"ws{self._url.removeprefix('http')}/api/v1/exec/{session}/cell?{query}"
        context = None
        if url.startswith("wss:"):
            context = ssl.create_default_context(cafile=DEFAULT_CA_BUNDLE_PATH)
        with ExitStack() as stack:
            try:
                socket = stack.enter_context(
                    connect(
                        url,
                        ssl=context,
                        additional_headers=upload_headers(
                            self._key, self._cell, url, b"", int(self._now())
                        ),
                        compression=None,
                        proxy=None,
                        open_timeout=OPEN_SECONDS,
                        close_timeout=CLOSE_SECONDS,
                        max_size=MAX_FRAME_BYTES,
                    )
                )
            except InvalidStatus as error:
                status = error.response.status_code
                if 400 <= status < 500 and status not in REPEATABLE:
                    raise LinkOver(f"web refused the session: HTTP status {status}") from error
                raise ConnectionLost(f"HTTP status {status}") from error
            except (WebSocketException, OSError, EOFError, ValueError) as error:
                raise ConnectionLost(str(error) or type(error).__name__) from error
            return CellConnection(stack.pop_all(), socket)


def _meaning_of(closed: ConnectionClosed) -> ConnectionLost | LinkOver:
    """Return what the close code means for the session."""
    frame = closed.rcvd
    if frame is not None and frame.code in FINAL_CODES:
        return LinkOver(frame.reason or "the session has ended", int(frame.code))
    return ConnectionLost(str(closed))
