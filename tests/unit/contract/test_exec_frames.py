"""Frames of `cellrun exec`: what one side packs the other one reads, and all else is refused."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.codec import compact_json
from controlplane.contract.exec_frames import (
    MAX_DATA_BYTES,
    MAX_POSITION,
    ExecFrame,
    FrameKind,
    MalformedFrame,
    check_command,
    exit_frame,
    pack_frame,
    read_exit,
    read_size,
    resize_frame,
    unpack_frame,
)
from controlplane.contract.messages.orders import ExecOrder, Orders


def test_the_bytes_of_a_frame() -> None:
    assert pack_frame(ExecFrame(FrameKind.DATA, 1, b"ls\n")) == b"\x01" + bytes(7) + b"\x01ls\n"
    assert pack_frame(resize_frame(258, rows=24, columns=80)) == (
        b"\x03" + bytes(6) + b"\x01\x02" + b"\x00\x18\x00\x50"
    )
    assert pack_frame(exit_frame(2, exit_code=-1, reason="gone")) == (
        b"\x05" + bytes(7) + b"\x02" + b"\xff\xff\xff\xffgone"
    )
    assert pack_frame(ExecFrame(FrameKind.ACK, 0)) == b"\x11" + bytes(8)


@given(
    kind=st.sampled_from((FrameKind.DATA, FrameKind.STDERR)),
    position=st.integers(1, MAX_POSITION),
    payload=st.binary(min_size=1, max_size=200),
)
def test_a_packed_frame_is_read_as_it_was(kind: FrameKind, position: int, payload: bytes) -> None:
    frame = ExecFrame(kind, position, payload)
    assert unpack_frame(pack_frame(frame)) == frame


@given(st.binary(max_size=64))
def test_any_message_is_a_frame_or_malformed(message: bytes) -> None:
    try:
        frame = unpack_frame(message)
    except MalformedFrame:
        return
    assert pack_frame(frame) == message


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\x07" + struct.pack("!Q", 1),
        b"\x01" + struct.pack("!Q", 1),
        b"\x01" + struct.pack("!Q", 0) + b"x",
        b"\x01" + struct.pack("!Q", 1 << 63) + b"x",
        b"\x01" + struct.pack("!Q", 1) + bytes(MAX_DATA_BYTES + 1),
        b"\x03" + struct.pack("!Q", 1) + b"123",
        b"\x04" + struct.pack("!Q", 1) + b"x",
        b"\x05" + struct.pack("!Q", 1) + b"123",
        b"\x05" + struct.pack("!Q", 1) + bytes(3000),
        b"\x06" + struct.pack("!Q", 1),
        b"\x11" + struct.pack("!Q", 1) + b"x",
        b"\x12" + struct.pack("!Q", 1) + b"{}",
    ],
)
def test_a_malformed_frame_is_refused(message: bytes) -> None:
    with pytest.raises(MalformedFrame):
        unpack_frame(message)


def test_sizes_and_exits_are_read_back() -> None:
    assert read_size(resize_frame(1, rows=50, columns=70000)) == (50, 0xFFFF)
    assert read_exit(exit_frame(1, exit_code=137, reason="é")) == (137, "é")
    cut = exit_frame(1, exit_code=1, reason="x" * 5000)
    assert read_exit(unpack_frame(pack_frame(cut))) == (1, "x" * 2048)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ((), "1 to 256"),
        (("a",) * 257, "1 to 256"),
        (("",), "program"),
        (("sh", "a\x00"), "NUL"),
        (("sh", "x" * 16 * 1024), "16 KiB"),
        (("é" * 8 * 1024,), "16 KiB"),
        (("'" * 4 * 1024,), "16 KiB"),
        ((" " * 16 * 1024,), "16 KiB"),
    ],
)
def test_a_command_out_of_bounds_is_refused(command: tuple[str, ...], text: str) -> None:
    assert text in (check_command(command) or "")


def test_a_command_within_the_bounds_is_accepted() -> None:
    assert check_command(("sh", "-c", "")) is None
    assert check_command(("x" * 16 * 1024,)) is None


def test_orders_carry_sessions_and_old_cells_get_none() -> None:
    order = ExecOrder("uid", "session", ("sh", "-c", "ls"), True, False, 12.5, 24, 80)
    orders = Orders(execs=(order,))
    sent = json.loads(compact_json(orders.body()))
    assert sent == {
        "type": "orders",
        "execs": [["uid", "session", ["sh", "-c", "ls"], True, False, 12.5, 24, 80]],
    }
    assert Orders.read(sent) == orders
    assert "execs" not in Orders().body()
