"""Web processes on ports, and scripted clients and cells of exec sessions that connect to them."""

import json
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import uvicorn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from controlplane import clock
from controlplane.api.exec.gateway import ExecGateway
from controlplane.config.http_protocol import PromptHeaders, PromptWebSockets
from controlplane.contract.exec_frames import (
    ExecFrame,
    FrameKind,
    exit_frame,
    pack_frame,
    unpack_frame,
)
from controlplane.contract.wire import keys
from controlplane.models import Cell
from controlplane.queries.cells.keys import key_of

DEADLINE_SECONDS = 20.0


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("a request that is no WebSocket")


class ExecWeb:
    """A web process on a port, as the stack starts it."""

    def __init__(self, port: int = 0) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        self.gateway = ExecGateway(_refuse)
        config = uvicorn.Config(
            self.gateway,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
            http=PromptHeaders,
            ws=PromptWebSockets,
            ws_max_size=131_072,
            ws_per_message_deflate=False,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of its WebSockets."""
        return f"ws://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Stop, with open streams."""
        self._server.should_exit = True
        self._thread.join(30)
        self._listening.close()


@dataclass
class ExecPeer:
    """One connection of a client or a cell, which sends and receives frames."""

    socket: ClientConnection
    sent: int = 0
    states: list[dict[str, Any]] = field(default_factory=list)
    accepted: int = 0

    def send(self, kind: FrameKind, payload: bytes = b"") -> int:
        """Send the next frame; return its position."""
        self.sent += 1
        self.send_frame(ExecFrame(kind, self.sent, payload))
        return self.sent

    def exit(self, exit_code: int, reason: str = "") -> None:
        """Send the end of the program."""
        self.sent += 1
        self.send_frame(exit_frame(self.sent, exit_code=exit_code, reason=reason))

    def send_frame(self, frame: ExecFrame) -> None:
        """Send a frame as it is."""
        self.socket.send(pack_frame(frame))

    def acknowledge(self, position: int) -> None:
        """Confirm that everything up to a position is consumed."""
        self.send_frame(ExecFrame(FrameKind.ACK, position))

    def next(self, *, acknowledges: bool = True) -> ExecFrame:
        """Return the next frame of the other side; note what web itself sends."""
        while True:
            message = self.socket.recv(DEADLINE_SECONDS)
            assert isinstance(message, bytes)
            frame = unpack_frame(message)
            if frame.kind is FrameKind.STATE:
                self.states.append(json.loads(frame.payload))
            elif frame.kind is FrameKind.ACCEPTED:
                self.accepted = frame.position
            else:
                if acknowledges:
                    # Web closes after EXIT, also before it is confirmed.
                    with suppress(ConnectionClosed):
                        self.acknowledge(frame.position)
                return frame

    def wait_until_accepted(self, position: int) -> None:
        """Return when web has stored the frames up to a position."""
        while self.accepted < position:
            message = self.socket.recv(DEADLINE_SECONDS)
            assert isinstance(message, bytes)
            frame = unpack_frame(message)
            assert frame.kind in (FrameKind.ACCEPTED, FrameKind.STATE)
            self.accepted = max(self.accepted, frame.position)

    def close_code(self) -> int:
        """Return the code with which web closes, 1006 without one.

        Fail if it sends another frame of the session.
        """
        try:
            frame = self.next()
        except ConnectionClosed as closed:
            return 1006 if closed.rcvd is None else closed.rcvd.code
        raise AssertionError(f"unexpected {frame}")

    def kill(self) -> None:
        """Break the connection without a closing handshake."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)
        self.socket.socket.close()


def connect_client(web: ExecWeb, session: str, token: str, *, after: int = 0) -> ExecPeer:
    """Connect as a client."""
    url = f"{web.url}/api/v1/exec/{session}/stream?after={after}"
    return ExecPeer(open_socket(url, {"Authorization": f"Bearer {token}"}))


def connect_cell(
    web: ExecWeb, session: str, cell: Cell, *, nonce: str = "ab" * 16, after: int = 0
) -> ExecPeer:
    """Connect as the process of a cell."""
    path = f"/api/v1/exec/{session}/cell?after={after}&nonce={nonce}"
    return ExecPeer(open_socket(f"{web.url}{path}", sign(cell, path)))


def sign(cell: Cell, path: str, *, key: bytes | None = None) -> dict[str, str]:
    """Return the headers of a signed handshake."""
    at = str(int(clock.now().timestamp()))
    text = f"{cell.name}\n{at}\n{path}\n{sha256().hexdigest()}"
    return {
        "X-Cellrun-Cell": cell.name,
        "X-Cellrun-Time": at,
        "X-Cellrun-Mac": keys.sign(keys.mac_key(key or key_of(cell), keys.UPLOAD), text),
    }


def open_socket(url: str, headers: dict[str, str]) -> ClientConnection:
    """Return a WebSocket without compression."""
    return connect(
        url,
        additional_headers=headers,
        compression=None,
        max_queue=None,
        proxy=None,
        legacy=True,
        open_timeout=DEADLINE_SECONDS,
    )
