"""The WebSocket of a session from the command to the API."""

import logging
import os
import ssl

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from websockets.sync.client import ClientConnection, connect

from cellrun.settings import ClientSettings
from controlplane.contract.exec_frames import MAX_FRAME_BYTES
from controlplane.contract.exec_socket import (
    CLOSE_SECONDS,
    OPEN_SECONDS,
    SocketConnection,
    open_connection,
)


def open_stream(settings: ClientSettings, session: str, after: int) -> SocketConnection:
    """Connect to a session of exec. Raise ConnectionLost, LinkOver."""
    base = f"ws{settings.url.removeprefix('http')}"
    url = f"{base}/api/v1/exec/{session}/stream?after={after}"

    def open_socket() -> ClientConnection:
        return connect(
            url,
            ssl=_tls() if url.startswith("wss:") else None,
            additional_headers={"Authorization": f"Bearer {settings.token}"},
            compression=None,
            open_timeout=OPEN_SECONDS,
            close_timeout=CLOSE_SECONDS,
            max_size=MAX_FRAME_BYTES,
            logger=_silent_logger(),
        )

    return open_connection(open_socket, _refusal)


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
