"""The WebSocket of a session from the command to the API."""

import logging
import os
import ssl
from contextlib import ExitStack, suppress

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
    WebSocketException,
)
from websockets.sync.client import ClientConnection, connect

from cellrun.settings import ClientSettings
from controlplane.contract.exec_frames import MAX_FRAME_BYTES
from controlplane.contract.exec_link import FINAL_CODES, ConnectionLost, LinkOver

OPEN_SECONDS = 10.0
CLOSE_SECONDS = 1.0
REPEATABLE = (408, 429)  # statuses of the handshake below 500 that are not final


class StreamConnection:
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
        except OSError as fault:
            raise ConnectionLost(str(fault)) from fault

    def receive(self, seconds: float) -> bytes | None:
        """Return the next message."""
        try:
            message = self._socket.recv(seconds)
        except TimeoutError:
            return None
        except ConnectionClosed as closed:
            raise _meaning_of(closed) from closed
        except OSError as fault:
            raise ConnectionLost(str(fault)) from fault
        return message if isinstance(message, bytes) else message.encode()

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._stack.close()


def open_stream(settings: ClientSettings, session: str, after: int) -> StreamConnection:
    """Connect to a session of exec. Raise ConnectionLost, LinkOver."""
    base = f"ws{settings.url.removeprefix('http')}"
    url = f"{base}/api/v1/exec/{session}/stream?after={after}"
    with ExitStack() as stack:
        try:
            socket = stack.enter_context(
                connect(
                    url,
                    ssl=_tls() if url.startswith("wss:") else None,
                    additional_headers={"Authorization": f"Bearer {settings.token}"},
                    compression=None,
                    open_timeout=OPEN_SECONDS,
                    close_timeout=CLOSE_SECONDS,
                    max_size=MAX_FRAME_BYTES,
                    logger=_silent_logger(),
                )
            )
        except InvalidStatus as fault:
            status = fault.response.status_code
            if 400 <= status < 500 and status not in REPEATABLE:
                raise LinkOver(_refusal(status, bytes(fault.response.body or b""))) from fault
            raise ConnectionLost(f"HTTP status {status}") from fault
        except (InvalidHandshake, InvalidURI, WebSocketException, OSError, EOFError) as fault:
            raise ConnectionLost(str(fault) or type(fault).__name__) from fault
        return StreamConnection(stack.pop_all(), socket)


def _silent_logger() -> logging.Logger:
    """Return a logger of the library that writes nothing: standard error is the program's."""
    return logging.Logger("cellrun.exec", logging.CRITICAL + 1)


def _tls() -> ssl.SSLContext:
    """Return the certificates that the command's other requests trust."""
    names = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    given = next((os.environ[name] for name in names if os.environ.get(name)), None)
    path = given or DEFAULT_CA_BUNDLE_PATH
    is_folder = os.path.isdir(path)
    return ssl.create_default_context(
        cafile=None if is_folder else path, capath=path if is_folder else None
    )


def _refusal(status: int, body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    is_text = text and not text.startswith(("{", "<"))
    return f"{text} [{status}]" if is_text else f"the server refused the stream [{status}]"


def _meaning_of(closed: ConnectionClosed) -> ConnectionLost | LinkOver:
    """Return what the close code means for the session."""
    frame = closed.rcvd
    if frame is not None and frame.code in FINAL_CODES:
        return LinkOver(frame.reason or "the session has ended", int(frame.code))
    return ConnectionLost(str(closed))
