"""One end of the stream of `cellrun exec`, of a cell or a client, across broken connections.

It keeps the frames that web has not accepted, sends them again over a new connection, and drops
repeated ones of the other side. Connections, locks and time are given: cell and client share this
code.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from controlplane.contract.exec_frames import (
    CloseCode,
    ExecFrame,
    FrameKind,
    MalformedFrame,
    pack_frame,
    unpack_frame,
)

# A sender waits while this much is not accepted: web holds it in memory if it cannot store it.
MAX_PENDING_BYTES = 256 * 1024
RECONNECT_SECONDS = 30.0  # without a connection, until the session is over
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)  # between tries; the last value repeats
FINAL_CODES = frozenset(
    (
        CloseCode.ENDED,
        CloseCode.MALFORMED,
        CloseCode.NOT_PERMITTED,
        CloseCode.UNKNOWN,
        CloseCode.REPLACED,
    )
)


class ConnectionLost(Exception):
    """A connection ended, or could not be made: another one may succeed."""


class LinkOver(Exception):
    """The session cannot continue. `code`: with which web closed it, if it did."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class LinkConnection(Protocol):
    """One WebSocket. Each call may raise ConnectionLost, or LinkOver for a final close code."""

    def send(self, message: bytes) -> None:
        """Send a message. Thread-safe."""

    def receive(self, seconds: float) -> bytes | None:
        """Return the next message; None: none came in this time."""

    def close(self) -> None:
        """Close the connection; raises nothing."""


class Condition(Protocol):
    """A lock that threads can wait for, such as threading.Condition."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class ExecLink:
    """One thread receives; any thread sends and confirms."""

    def __init__(
        self,
        connect: Callable[[int], LinkConnection],
        *,
        receives: frozenset[FrameKind],
        now: Callable[[], float],
        changed: Condition,
        sending: AbstractContextManager[object],
        reconnect_seconds: float = RECONNECT_SECONDS,
    ) -> None:
        """`connect` takes the position of the last consumed frame. Raises as a connection does.

        `receives`: kinds of frames of the other side. `sending`: a lock that keeps the order of
        frames.
        """
        self._connect = connect
        self._kinds = receives
        self._now = now
        self._changed = changed
        self._sending = sending
        self._reconnect_seconds = reconnect_seconds
        self._connection: LinkConnection | None = None
        self._lost_at = now()
        self._next_try = self._lost_at
        self._tries = 0
        self._why = "no connection yet"
        self._over: LinkOver | None = None
        self._pending: deque[tuple[int, bytes]] = deque()  # positions and messages
        self._pending_bytes = 0
        self._is_claimed = False
        self._sent = 0
        self._received = 0
        self._consumed = 0

    @property
    def is_claimed(self) -> bool:
        """Whether web has sent a message, as it does once it has let this side into the session."""
        return self._is_claimed

    @property
    def is_all_accepted(self) -> bool:
        """Whether web has stored all that was sent."""
        return not self._pending

    def receive(self, seconds: float) -> ExecFrame | None:
        """Return the next frame or STATE; None: none came. Connect if necessary. Raise LinkOver.

        Takes longer than `seconds` only while it connects.
        """
        if self._over is not None:
            raise self._over
        connection = self._connection
        try:
            if connection is None:
                self._reconnect(seconds)
                return None
            message = connection.receive(seconds)
            return None if message is None else self._take(message)
        except ConnectionLost as lost:
            self._drop(connection, str(lost))
        except MalformedFrame as error:
            self._end(LinkOver(f"the server sent a malformed frame: {error}", CloseCode.MALFORMED))
        except LinkOver as over:
            self._end(over)
        if self._over is not None:
            raise self._over
        return None

    def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        """Send a frame, also after a reconnect; wait while too much is pending. Raise LinkOver."""
        with self._changed:  # without the other lock, which a reconnect needs
            while self._pending_bytes >= MAX_PENDING_BYTES and self._over is None:
                self._changed.wait(1.0)
        with self._sending:
            with self._changed:
                if self._over is not None:
                    raise self._over
                message = pack_frame(ExecFrame(kind, self._sent + 1, payload))
                self._sent += 1
                self._pending.append((self._sent, message))
                self._pending_bytes += len(message)
                connection = self._connection
            self._pass(connection, message)

    def confirm(self, position: int) -> None:
        """Report that everything up to `position` is consumed."""
        with self._changed:
            self._consumed = max(self._consumed, position)
            connection = self._connection
        self._pass(connection, pack_frame(ExecFrame(FrameKind.ACK, position)))

    def close(self) -> None:
        """End the link: waiting senders raise LinkOver."""
        self._end(LinkOver("the session was closed here"))

    def _take(self, message: bytes) -> ExecFrame | None:
        """Return a new frame; None: it was for this link, or repeated. Raise MalformedFrame."""
        frame = unpack_frame(message)
        with self._changed:
            self._is_claimed = True
            if frame.kind is FrameKind.STATE:
                return frame
            if frame.kind is FrameKind.ACCEPTED:
                self._accept(frame.position)
                return None
            if frame.kind not in self._kinds:
                raise MalformedFrame(f"{frame.kind.name} in this direction")
            if frame.position <= self._received:
                return None
            if frame.position != self._received + 1:
                raise MalformedFrame(f"frame {frame.position} after {self._received}")
            self._received = frame.position
        return frame

    def _accept(self, position: int) -> None:
        if position > self._sent:
            raise MalformedFrame(f"frame {position} is accepted, and {self._sent} were sent")
        while self._pending and self._pending[0][0] <= position:
            self._pending_bytes -= len(self._pending.popleft()[1])
        self._changed.notify_all()

    def _reconnect(self, seconds: float) -> None:
        now = self._now()
        if now >= self._lost_at + self._reconnect_seconds:
            raise LinkOver(f"no connection for {self._reconnect_seconds:g} s: {self._why}")
        if now < self._next_try:
            with self._changed:
                self._changed.wait(min(seconds, self._next_try - now))
            return
        self._next_try = now + RETRY_SECONDS[min(self._tries, len(RETRY_SECONDS) - 1)]
        self._tries += 1
        after = self._consumed
        connection = self._connect(after)
        with self._sending:
            with self._changed:
                self._connection = connection
                messages = [message for _, message in self._pending]
                if self._consumed > after:  # confirmed by another thread meanwhile
                    messages.append(pack_frame(ExecFrame(FrameKind.ACK, self._consumed)))
                is_over = self._over is not None
            for message in messages:
                self._pass(connection, message)
        if is_over:
            connection.close()

    def _pass(self, connection: LinkConnection | None, message: bytes) -> None:
        """Send, or leave it to the thread that receives to detect the loss of the connection."""
        if connection is None:
            return
        try:
            connection.send(message)
        except (ConnectionLost, LinkOver):
            return

    def _drop(self, connection: LinkConnection | None, why: str) -> None:
        self._why = why
        if connection is None:
            return
        connection.close()
        self._connection = None
        self._lost_at = self._next_try = self._now()
        self._tries = 0

    def _end(self, over: LinkOver) -> None:
        with self._changed:
            self._over = self._over or over
            connection, self._connection = self._connection, None
            self._changed.notify_all()
        if connection is not None:
            connection.close()
