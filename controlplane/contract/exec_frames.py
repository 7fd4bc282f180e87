"""The frames of `cellrun exec`: one binary WebSocket message each, of web, clients, and cells.

A frame is its kind (1 byte), its position (8 bytes, big-endian), and its payload. Senders number
their frames from 1, without gaps. Web stores them in this order and passes them on under the same
positions, so that each side can continue after a broken connection and no frame counts twice.
"""

import shlex
import struct
from dataclasses import dataclass
from enum import IntEnum

MAX_DATA_BYTES = 64 * 1024  # of one frame; more is sent as several
MAX_REASON_BYTES = 2 * 1024  # of an EXIT
MAX_STATE_BYTES = 256 * 1024  # of a STATE; the command alone may take 96 KiB
# What web stores of one direction before the receiver must confirm it.
MAX_UNCONFIRMED_BYTES = 1024 * 1024
MAX_POSITION = (1 << 63) - 1
MAX_FRAME_BYTES = 9 + MAX_STATE_BYTES
"""The longest frame of any kind: the limit for messages of a WebSocket library."""

MAX_COMMAND_ARGUMENTS = 256
MAX_COMMAND_BYTES = 16 * 1024
"""Of a command that is quoted for a shell: the audit log has it whole."""

_HEAD = struct.Struct("!BQ")
_SIZE = struct.Struct("!HH")
_EXIT_CODE = struct.Struct("!i")


class MalformedFrame(ValueError):
    """A message that is no valid frame; its connection is closed with `CloseCode.MALFORMED`."""


class FrameKind(IntEnum):
    """The first byte of a frame."""

    DATA = 0x01
    """Bytes for the standard input, or of the standard output or the terminal."""
    STDERR = 0x02
    """Bytes of the standard error, without a terminal."""
    RESIZE = 0x03
    """The size of the client's terminal: rows and columns."""
    EOF = 0x04
    """The end of the standard input."""
    EXIT = 0x05
    """The end of the program: the last frame of a cell."""
    SIGNAL = 0x06
    """The number of a signal for the program."""
    ACCEPTED = 0x10
    """From web: all frames up to the position are stored, and the sender may drop them."""
    ACK = 0x11
    """From a receiver: all frames up to the position are consumed, and web may drop them."""
    STATE = 0x12
    """From web to a client, at position 0: the session as a JSON document."""


class CloseCode(IntEnum):
    """The code with which web closes a connection."""

    ENDED = 1000
    RESTART = 1012
    TRY_AGAIN_LATER = 1013
    MALFORMED = 4400
    NOT_PERMITTED = 4403
    UNKNOWN = 4404
    REPLACED = 4409
    """Another connection of the same side exists, or the claim was refused."""


CLIENT_KINDS = frozenset((FrameKind.DATA, FrameKind.RESIZE, FrameKind.EOF, FrameKind.SIGNAL))
"""What a client sends to the program, besides ACK."""
CELL_KINDS = frozenset((FrameKind.DATA, FrameKind.STDERR, FrameKind.EXIT))
"""What a cell sends to the client, besides ACK."""

# The smallest and the largest payload.
_LENGTHS = {
    FrameKind.DATA: (1, MAX_DATA_BYTES),
    FrameKind.STDERR: (1, MAX_DATA_BYTES),
    FrameKind.RESIZE: (_SIZE.size, _SIZE.size),
    FrameKind.EOF: (0, 0),
    FrameKind.EXIT: (_EXIT_CODE.size, _EXIT_CODE.size + MAX_REASON_BYTES),
    FrameKind.SIGNAL: (1, 1),
    FrameKind.ACCEPTED: (0, 0),
    FrameKind.ACK: (0, 0),
    FrameKind.STATE: (2, MAX_STATE_BYTES),
}
# ACK 0 and ACCEPTED 0 confirm nothing, but are true at the begin of a session.
_MAY_BE_ZERO = frozenset((FrameKind.ACCEPTED, FrameKind.ACK, FrameKind.STATE))


@dataclass(frozen=True, slots=True)
class ExecFrame:
    """One frame. `position`: its number at its sender, or of the last confirmed frame."""

    kind: FrameKind
    position: int
    payload: bytes = b""


def pack_frame(frame: ExecFrame) -> bytes:
    """Return the message of a frame. Raise MalformedFrame if no receiver would accept it."""
    _check(frame)
    return _HEAD.pack(frame.kind, frame.position) + frame.payload


def unpack_frame(message: bytes) -> ExecFrame:
    """Return the frame in a message. Raise MalformedFrame."""
    if len(message) < _HEAD.size:
        raise MalformedFrame(f"a frame has at least {_HEAD.size} bytes, not {len(message)}")
    number, position = _HEAD.unpack_from(message)
    try:
        kind = FrameKind(number)
    except ValueError:
        raise MalformedFrame(f"unknown kind of frame 0x{number:02x}") from None
    frame = ExecFrame(kind, position, bytes(message[_HEAD.size :]))
    _check(frame)
    return frame


def _check(frame: ExecFrame) -> None:
    least = 0 if frame.kind in _MAY_BE_ZERO else 1
    if not least <= frame.position <= MAX_POSITION:
        raise MalformedFrame(f"{frame.kind.name} has the position {frame.position}")
    if frame.kind is FrameKind.STATE and frame.position:
        raise MalformedFrame("STATE has the position 0")
    shortest, longest = _LENGTHS[frame.kind]
    if not shortest <= len(frame.payload) <= longest:
        raise MalformedFrame(
            f"{frame.kind.name} has {shortest} to {longest} bytes, not {len(frame.payload)}"
        )


def resize_frame(position: int, *, rows: int, columns: int) -> ExecFrame:
    """Return a RESIZE; numbers out of range are set to the nearest bound."""
    rows, columns = (min(max(number, 0), 0xFFFF) for number in (rows, columns))
    return ExecFrame(FrameKind.RESIZE, position, _SIZE.pack(rows, columns))


def read_size(frame: ExecFrame) -> tuple[int, int]:
    """Return the rows and columns of a RESIZE."""
    rows, columns = _SIZE.unpack(frame.payload)
    return rows, columns


def exit_frame(position: int, *, exit_code: int, reason: str = "") -> ExecFrame:
    """Return an EXIT; a long reason is cut."""
    cut = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES]
    return ExecFrame(FrameKind.EXIT, position, _EXIT_CODE.pack(exit_code) + cut)


def read_exit(frame: ExecFrame) -> tuple[int, str]:
    """Return the exit code and the reason of an EXIT; the reason is "" if the program ended."""
    (exit_code,) = _EXIT_CODE.unpack_from(frame.payload)
    reason = frame.payload[_EXIT_CODE.size :].decode("utf-8", "replace").replace("\x00", "")
    return exit_code, reason


def check_command(command: tuple[str, ...]) -> str | None:
    """Return why a command is refused, or None."""
    if not 1 <= len(command) <= MAX_COMMAND_ARGUMENTS:
        return f"a command has 1 to {MAX_COMMAND_ARGUMENTS} arguments"
    if any("\x00" in argument for argument in command):
        return "an argument must not contain NUL"
    if not command[0]:
        return "the first argument is the program, and must not be empty"
    if len(shlex.join(command).encode("utf-8", "replace")) > MAX_COMMAND_BYTES:
        return f"a command has at most {MAX_COMMAND_BYTES // 1024} KiB when quoted for a shell"
    return None
