"""One WebSocket of an exec session: pass its frames to Redis, and those of the other side to it.

Four tasks share a connection: one reads the socket, one stores what was read, one sends what the
other side stored, one checks the session and the permission. The first that ends, ends it.
"""

import asyncio
from collections import deque
from collections.abc import Collection
from uuid import UUID

import structlog
from django.db import InterfaceError, OperationalError
from redis.exceptions import RedisError

from controlplane.api.body_limit import Receive, Send
from controlplane.api.exec import admission
from controlplane.api.exec.admission import StreamPeer, StreamRefusal
from controlplane.contract.exec_frames import (
    CELL_KINDS,
    CLIENT_KINDS,
    MAX_UNCONFIRMED_BYTES,
    CloseCode,
    ExecFrame,
    FrameKind,
    MalformedFrame,
    pack_frame,
    read_exit,
    unpack_frame,
)
from controlplane.domain.cells.exec_sessions import STREAM_LOST, ExecState
from controlplane.limits.pace import Pace
from controlplane.outbox.exec_streams import (
    BLOCK_SECONDS,
    ConnectionReplaced,
    Side,
    SideStreams,
    StreamLost,
    WrongPosition,
)

log = structlog.get_logger(__name__)

# A revoked token, a lost role or an ended session ends a connection within 5 s.
CHECK_SECONDS = 2.0
# Of one direction, so that no session takes all time of web.
BYTES_PER_SECOND = 4 * 1024 * 1024
# A well-behaved sender has at most MAX_UNCONFIRMED_BYTES that are not accepted, so that web can
# read its ACKs although the receiver does not consume; of any other sender web stops reading.
MAX_QUEUED_BYTES = MAX_UNCONFIRMED_BYTES + 256 * 1024
# Between two tries to store a frame while the receiver does not consume: the first pause, the most.
ROOM_SECONDS, MAX_ROOM_SECONDS = 0.01, 0.2
# What a frame counts besides its payload: 4,096 empty frames are as much work as 4 MiB.
_FRAME_BYTES = 1024
ACKS_PER_SECOND = 1_000

CANCEL_SECONDS = 0.05

UNAVAILABLE = (RedisError, OSError, OperationalError, InterfaceError)


class ClientLeft(Exception):
    """The other end of the socket is gone."""


class FrameQueue:
    """Frames that were read from the socket and are not stored; bounded by their size."""

    def __init__(self) -> None:
        self._frames: deque[ExecFrame] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    async def put(self, frame: ExecFrame) -> None:
        """Add a frame, when there is room."""
        while self._bytes >= MAX_QUEUED_BYTES:
            await self._wait()
        self._frames.append(frame)
        self._bytes += len(frame.payload) + _FRAME_BYTES
        self._changed.set()

    async def take(self) -> ExecFrame:
        """Return the next frame, when there is one."""
        while not self._frames:
            await self._wait()
        frame = self._frames.popleft()
        self._bytes -= len(frame.payload) + _FRAME_BYTES
        self._changed.set()
        return frame

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class ExecConnection:
    """An accepted WebSocket of one side of a session."""

    def __init__(
        self, peer: StreamPeer, streams: SideStreams, receive: Receive, send: Send
    ) -> None:
        self._peer = peer
        self._streams = streams
        self._receive = receive
        self._send = send
        self._queue = FrameQueue()
        self._has_ended = asyncio.Event()
        if peer.has_ended:
            self._has_ended.set()
        loop = asyncio.get_running_loop()
        self._pace = Pace(per_second=BYTES_PER_SECOND, burst=MAX_UNCONFIRMED_BYTES, now=loop.time)
        self._acks = Pace(per_second=ACKS_PER_SECOND, burst=ACKS_PER_SECOND, now=loop.time)

    async def run(self) -> CloseCode | None:
        """Pass on frames until one side leaves; return the code to close with; None: it has left.

        A session whose streams are lost ends.
        """
        loops = (self._read_socket(), self._store(), self._deliver(), self._watch())
        tasks = [asyncio.ensure_future(loop) for loop in loops]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return CloseCode.ENDED
        except ClientLeft:
            return None
        except (MalformedFrame, WrongPosition) as fault:
            log.warning("exec_frame_malformed", **self._names(), error=str(fault))
            return CloseCode.MALFORMED
        except ConnectionReplaced:
            return CloseCode.REPLACED
        except StreamRefusal as refusal:
            return refusal.code
        except StreamLost:
            log.warning("exec_stream_lost", **self._names())
            await asyncio.to_thread(admission.end, self._peer.session, STREAM_LOST)
            return CloseCode.ENDED
        except UNAVAILABLE as fault:
            log.warning("exec_unavailable", **self._names(), error=str(fault))
            return CloseCode.TRY_AGAIN_LATER
        finally:
            await _cancel(tasks)

    def _names(self) -> dict[str, str]:
        peer = self._peer
        return {"session": str(peer.session), "attempt": str(peer.attempt_uid), "side": peer.side}

    async def _read_socket(self) -> None:
        """Read frames of this side; pass on its ACKs at once, and queue the others."""
        kinds = CLIENT_KINDS if self._peer.side is Side.CLIENT else CELL_KINDS
        newest, has_exited = 0, False
        while True:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                raise ClientLeft
            frame = unpack_frame(message.get("bytes") or b"")
            if frame.kind is FrameKind.ACK:
                await asyncio.sleep(self._acks.take(1))
                await self._streams.acknowledge(frame.position)
                continue
            if frame.kind not in kinds:
                raise MalformedFrame(f"{frame.kind.name} is not sent by a {self._peer.side}")
            if newest and frame.position != newest + 1:
                raise MalformedFrame(f"position {frame.position} follows {newest}")
            if has_exited:
                raise MalformedFrame(f"{frame.kind.name} follows EXIT")
            newest, has_exited = frame.position, frame.kind is FrameKind.EXIT
            await self._queue.put(frame)

    async def _store(self) -> None:
        """Store queued frames as the receiver consumes, and confirm them to the sender."""
        while True:
            frame = await self._queue.take()
            await asyncio.sleep(self._pace.take(len(frame.payload) + _FRAME_BYTES))
            if frame.kind is FrameKind.EXIT:
                # Before its frame, so that a client that has it reads the end from PostgreSQL.
                exit_code, reason = read_exit(frame)
                await asyncio.to_thread(admission.end, self._peer.session, reason, exit_code)
            pause = ROOM_SECONDS
            while not await self._streams.append(frame):
                while not await self._streams.has_room(len(frame.payload)):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_ROOM_SECONDS)
            await self.send_frame(ExecFrame(FrameKind.ACCEPTED, frame.position))
            if frame.kind is FrameKind.EXIT:
                return

    async def _deliver(self) -> None:
        """Send the frames of the other side; end after EXIT, or at the end of the session."""
        position = self._peer.after
        while True:
            has_ended = self._has_ended.is_set()
            frames = await self._streams.read(position, seconds=0 if has_ended else BLOCK_SECONDS)
            for frame in frames:
                await self.send_frame(frame)
                position = frame.position
                if frame.kind is FrameKind.EXIT:
                    return
            if not frames:
                if has_ended:
                    return
                await self._streams.keep()

    async def _watch(self) -> None:
        """Check the session, the permission, and that this is the newest connection."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self._streams.keep()
            if await asyncio.to_thread(admission.check, self._peer) is ExecState.ENDED:
                self._has_ended.set()

    async def send_frame(self, frame: ExecFrame) -> None:
        """Send one frame. Raise ClientLeft."""
        await send_bytes(self._send, pack_frame(frame))


async def _cancel(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Cancel tasks and wait for their ends.

    The client of Redis may lose a cancellation, for example while it connects.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=CANCEL_SECONDS)
        for task in done:
            # Otherwise the event loop logs it.
            if not task.cancelled():
                task.exception()


async def send_bytes(send: Send, content: bytes) -> None:
    """Send one binary message. Raise ClientLeft."""
    try:
        await send({"type": "websocket.send", "bytes": content})
    except OSError:
        raise ClientLeft from None


async def send_state(send: Send, session: UUID) -> bool:
    """Send the document of the session; return whether it exists. Raise ClientLeft."""
    document = await asyncio.to_thread(admission.read_state, session)
    if document is None:
        return False
    await send_bytes(send, pack_frame(ExecFrame(FrameKind.STATE, 0, document)))
    return True
