"""A web of its own for one session of exec: both streams in memory, over real WebSockets."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from controlplane.contract.exec_frames import (
    MAX_FRAME_BYTES,
    ExecFrame,
    FrameKind,
    exit_frame,
    pack_frame,
    resize_frame,
    unpack_frame,
)

SECONDS = 60.0


class FrameStream:
    """One direction: what a sender stored and its receiver has not confirmed."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.frames: list[ExecFrame] = []
        self.confirmed = 0
        self.repeated = 0

    def add(self, frame: ExecFrame) -> None:
        with self.changed:
            if frame.position <= len(self.frames):
                self.repeated += 1
            else:
                assert frame.position == len(self.frames) + 1, frame
                self.frames.append(frame)
                self.changed.notify_all()

    def content(self, kind: FrameKind = FrameKind.DATA) -> bytes:
        with self.changed:
            return b"".join(frame.payload for frame in self.frames if frame.kind is kind)


class ExecWeb:
    """Serves the path of the cell, and that of the client, like web; or tests play one side.

    `refuses`: the status of every handshake. `closes`: the code with which each accepted
    connection is closed. `has_several`: the streams are those of several sessions. `is_accepting`:
    whether stored frames are accepted.
    """

    def __init__(self) -> None:
        self.to_cell = FrameStream()
        self.to_client = FrameStream()
        self.refuses: int | None = None
        self.closes: int | None = None
        self.has_several = False
        self.is_accepting = True
        self.requests: list[Request] = []
        self.connections: list[ServerConnection] = []
        self.document: dict[str, Any] = {"uid": "s", "state": "OPEN", "reason": ""}
        self.on_message: Callable[[ServerConnection, bytes], bool] = lambda connection, text: False
        self._server: Server | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, at the same port as before."""
        self._server = serve(
            self._handle,
            "127.0.0.1",
            self._port,
            process_request=self._check,
            compression=None,
            max_size=MAX_FRAME_BYTES,
            close_timeout=0.2,
        )
        self._port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self, code: int = 1012) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.shutdown()
            self.drop(code)
            self._server = None

    def drop(self, code: int = 1012, reason: str = "") -> None:
        """End all connections; the server stays."""
        for connection in self.connections:
            with suppress(Exception):
                connection.close(code, reason)
        self.connections.clear()

    def type(self, *frames: tuple[FrameKind, bytes]) -> None:
        """Send to the cell, as a client does."""
        for kind, payload in frames:
            self.to_cell.add(ExecFrame(kind, len(self.to_cell.frames) + 1, payload))

    def resize(self, rows: int, columns: int) -> None:
        self.type((FrameKind.RESIZE, resize_frame(1, rows=rows, columns=columns).payload))

    def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        """Send to the client, as a cell does."""
        self.to_client.add(ExecFrame(kind, len(self.to_client.frames) + 1, payload))

    def exit(self, code: int, reason: str = "") -> None:
        self.send(FrameKind.EXIT, exit_frame(1, exit_code=code, reason=reason).payload)

    def wait_for(self, stream: FrameStream, condition: Callable[[], Any]) -> None:
        """Return once `condition` holds after a change of `stream`."""
        with stream.changed:
            count = len(stream.frames)
            assert stream.changed.wait_for(condition, SECONDS), f"no change after {count} frames"

    def end(self) -> ExecFrame:
        """Return the EXIT of the cell."""
        frames = self.to_client.frames
        self.wait_for(self.to_client, lambda: frames and frames[-1].kind is FrameKind.EXIT)
        return frames[-1]

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if self.refuses is None:
            return None
        return connection.respond(HTTPStatus(self.refuses), "not here\n")

    def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        parts = urlsplit(connection.request.path)
        after = int(parse_qs(parts.query)["after"][0])
        is_cell = parts.path.endswith("/cell")
        self.connections.append(connection)
        stored, passed = (
            (self.to_client, self.to_cell) if is_cell else (self.to_cell, self.to_client)
        )
        if self.closes is not None:
            connection.close(self.closes)
            return
        if is_cell:
            count = 0 if self.has_several else len(self.to_client.frames)
            connection.send(pack_frame(ExecFrame(FrameKind.ACCEPTED, count)))
        else:
            state = json.dumps(self.document).encode()
            connection.send(pack_frame(ExecFrame(FrameKind.STATE, 0, state)))
        threading.Thread(target=self._pass, args=(connection, passed, after), daemon=True).start()
        with suppress(ConnectionClosed):
            for message in connection:
                assert isinstance(message, bytes)
                if not self.on_message(connection, message):
                    self._take(connection, unpack_frame(message), stored, passed)

    def _take(
        self,
        connection: ServerConnection,
        frame: ExecFrame,
        stored: FrameStream,
        passed: FrameStream,
    ) -> None:
        if frame.kind is FrameKind.ACK:
            with passed.changed:
                passed.confirmed = max(passed.confirmed, frame.position)
                passed.changed.notify_all()
            return
        is_accepting = self.is_accepting  # tests set it once they have seen the stored frame
        stored.add(frame)
        if is_accepting:
            connection.send(pack_frame(ExecFrame(FrameKind.ACCEPTED, len(stored.frames))))

    def _pass(self, connection: ServerConnection, stream: FrameStream, after: int) -> None:
        position = after
        with suppress(ConnectionClosed):
            while connection.state.name == "OPEN":
                with stream.changed:
                    if len(stream.frames) == position:
                        stream.changed.wait(0.2)
                    frames = stream.frames[position:]
                for frame in frames:
                    connection.send(pack_frame(frame))
                position += len(frames)


def until(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The first true value of `condition`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")
