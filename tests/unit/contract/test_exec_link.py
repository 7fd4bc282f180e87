"""One end of a stream: order, window, repeats, and when it gives up."""

import threading
from collections import deque
from collections.abc import Callable

import pytest

from controlplane.contract.exec_frames import (
    CELL_KINDS,
    CloseCode,
    ExecFrame,
    FrameKind,
    pack_frame,
    unpack_frame,
)
from controlplane.contract.exec_link import (
    MAX_PENDING_BYTES,
    RECONNECT_SECONDS,
    ConnectionLost,
    ExecLink,
    LinkOver,
)


class Wire:
    """One connection: the test is the other end."""

    def __init__(self) -> None:
        self.sent: list[ExecFrame] = []
        self.incoming: deque[bytes | Exception] = deque()
        self.is_closed = False

    def send(self, message: bytes) -> None:
        if self.is_closed:
            raise ConnectionLost("closed")
        self.sent.append(unpack_frame(message))

    def receive(self, seconds: float) -> bytes | None:
        if not self.incoming:
            return None
        item = self.incoming.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        self.is_closed = True

    def put(self, kind: FrameKind, position: int, payload: bytes = b"") -> None:
        self.incoming.append(pack_frame(ExecFrame(kind, position, payload)))


class End:
    """A link with connections and a clock of the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.after: list[int] = []
        self.wires: list[Wire] = []
        self.fault: Exception | None = None
        self.during_connect: Callable[[], None] = lambda: None
        self.link = ExecLink(
            self.connect,
            receives=CELL_KINDS,
            now=lambda: self.now,
            changed=threading.Condition(),
            sending=threading.Lock(),
        )

    def connect(self, after: int) -> Wire:
        self.after.append(after)
        if self.fault is not None:
            raise self.fault
        self.during_connect()
        self.wires.append(Wire())
        return self.wires[-1]

    def connected(self) -> Wire:
        assert self.link.receive(0) is None
        return self.wires[-1]


@pytest.fixture
def end() -> End:
    return End()


def positions(wire: Wire) -> list[tuple[str, int]]:
    return [(frame.kind.name, frame.position) for frame in wire.sent]


def test_frames_are_numbered_from_one(end: End) -> None:
    wire = end.connected()
    end.link.send(FrameKind.DATA, b"a")
    end.link.send(FrameKind.EOF)
    assert positions(wire) == [("DATA", 1), ("EOF", 2)]


def test_frames_before_a_connection_follow_it(end: End) -> None:
    end.link.send(FrameKind.DATA, b"a")
    assert positions(end.connected()) == [("DATA", 1)]


def test_only_frames_that_were_not_accepted_are_sent_again(end: End) -> None:
    wire = end.connected()
    for content in (b"a", b"b", b"c"):
        end.link.send(FrameKind.DATA, content)
    wire.put(FrameKind.ACCEPTED, 2)
    wire.incoming.append(ConnectionLost("gone"))
    assert end.link.receive(0) is None
    assert not end.link.is_all_accepted
    assert end.link.receive(0) is None
    assert positions(end.connected()) == [("DATA", 3)]
    end.wires[-1].put(FrameKind.ACCEPTED, 3)
    end.link.receive(0)
    assert end.link.is_all_accepted


def test_reconnect_names_the_last_consumed_frame_and_drops_repeats(end: End) -> None:
    wire = end.connected()
    for position in (1, 2, 3):
        wire.put(FrameKind.DATA, position, b"%d" % position)
    found = [end.link.receive(0) for _ in range(3)]
    assert [frame and frame.payload for frame in found] == [b"1", b"2", b"3"]
    end.link.confirm(1)
    assert positions(wire) == [("ACK", 1)]
    wire.incoming.append(ConnectionLost("gone"))
    end.link.receive(0)
    again = end.connected()
    assert end.after == [0, 1]
    for position in (2, 3, 4):
        again.put(FrameKind.DATA, position, b"%d" % position)
    found = [end.link.receive(0) for _ in range(3)]
    assert [frame and frame.payload for frame in found] == [None, None, b"4"]


def test_frame_that_is_confirmed_during_a_reconnect_is_acknowledged(end: End) -> None:
    wire = end.connected()
    wire.put(FrameKind.DATA, 1, b"1")
    end.link.receive(0)
    wire.incoming.append(ConnectionLost("gone"))
    end.link.receive(0)
    end.during_connect = lambda: end.link.confirm(1)
    assert positions(end.connected()) == [("ACK", 1)]
    assert end.after == [0, 0]


def test_claim_is_known_from_the_first_message(end: End) -> None:
    wire = end.connected()
    assert not end.link.is_claimed
    wire.put(FrameKind.ACCEPTED, 0)
    end.link.receive(0)
    assert end.link.is_claimed


@pytest.mark.parametrize(
    "frame",
    [
        ExecFrame(FrameKind.DATA, 2, b"gap"),
        ExecFrame(FrameKind.EOF, 1),
        ExecFrame(FrameKind.ACK, 1),
        ExecFrame(FrameKind.ACCEPTED, 1),
    ],
    ids=["gap", "wrong direction", "ack", "accepted what was not sent"],
)
def test_frame_out_of_place_ends_the_link(end: End, frame: ExecFrame) -> None:
    wire = end.connected()
    wire.incoming.append(pack_frame(frame))
    with pytest.raises(LinkOver, match="malformed frame"):
        end.link.receive(0)
    assert wire.is_closed
    with pytest.raises(LinkOver):
        end.link.send(FrameKind.DATA, b"late")


def test_final_close_ends_the_link(end: End) -> None:
    end.connected().incoming.append(LinkOver("ended", CloseCode.ENDED))
    with pytest.raises(LinkOver, match="ended"):
        end.link.receive(0)
    with pytest.raises(LinkOver, match="ended"):
        end.link.receive(0)
    assert len(end.wires) == 1


def test_link_gives_up_after_a_time_without_a_connection(end: End) -> None:
    wire = end.connected()
    end.now = 1000.0
    wire.incoming.append(ConnectionLost("gone"))
    end.link.receive(0)
    end.fault = ConnectionLost("refused")
    for end.now in range(1000, 1000 + int(RECONNECT_SECONDS)):
        assert end.link.receive(0) is None
    assert len(end.after) > 10
    end.now = 1000 + RECONNECT_SECONDS
    with pytest.raises(LinkOver, match="no connection for 30 s: refused"):
        end.link.receive(0)


def test_sender_waits_while_too_much_is_pending(end: End) -> None:
    wire = end.connected()
    piece = bytes(64 * 1024)
    count = MAX_PENDING_BYTES // len(piece) + 1
    thread = threading.Thread(
        target=lambda: [end.link.send(FrameKind.DATA, piece) for _ in range(count)]
    )
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert len(wire.sent) == count - 1
    wire.put(FrameKind.ACCEPTED, 1)
    end.link.receive(0)
    thread.join(60)
    assert len(wire.sent) == count


def test_waiting_sender_does_not_hinder_a_reconnect(end: End) -> None:
    wire = end.connected()
    piece = bytes(64 * 1024)
    count = MAX_PENDING_BYTES // len(piece) + 1
    thread = threading.Thread(
        target=lambda: [end.link.send(FrameKind.DATA, piece) for _ in range(count)]
    )
    thread.start()
    thread.join(0.2)
    wire.incoming.append(ConnectionLost("gone"))
    end.link.receive(0)
    again = end.connected()
    assert len(again.sent) == count - 1
    again.put(FrameKind.ACCEPTED, count - 1)
    end.link.receive(0)
    thread.join(60)
    assert [frame.position for frame in again.sent] == list(range(1, count + 1))


def test_close_ends_a_waiting_sender(end: End) -> None:
    results: list[str] = []

    def send() -> None:
        try:
            while True:
                end.link.send(FrameKind.DATA, bytes(64 * 1024))
        except LinkOver as over:
            results.append(str(over))

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.1)
    end.link.close()
    thread.join(60)
    assert results == ["the session was closed here"]
