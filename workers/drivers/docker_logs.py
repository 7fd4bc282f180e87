"""The Engine's log stream, taken apart: which stream, at which nanosecond, which bytes."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

from workers.attempt.capture import Capture, Cursor, Entry
from workers.attempt.engine import EngineError

HEADER = struct.Struct(">BxxxL")
STREAM_OF = {0: "stdout", 1: "stdout", 2: "stderr"}
BLOCK_BYTES = 64 * 1024
PART_BYTES = 16 * 1024  # Docker keeps a longer line in parts of this size


def since(cursor: Cursor) -> str:
    """The `since` parameter that gives the cursor's own entries (it is inclusive) and all after."""
    seconds, nanoseconds = divmod(cursor.nanoseconds, 10**9)
    return f"{seconds}.{nanoseconds:09d}" if cursor.nanoseconds else "0"


def copy_entries(
    read: Callable[[int], bytes],
    capture: Capture,
    reader: int,
    cursor: Cursor,
    *,
    mend: bool,
) -> None:
    """Add to `capture` what `read` gives, from the cursor on, block by block. Raises Superseded.

    `mend`: the last part of a long line comes without its newline (Docker's local log driver).
    """
    skip = cursor.entries
    is_within = dict.fromkeys(STREAM_OF.values(), False)  # the last entry was part of a long line
    for block in blocks_of_entries(read):
        kept = []
        for entry in block:
            follows, is_within[entry.stream] = is_within[entry.stream], is_part(entry)
            if skip and entry.nanoseconds == cursor.nanoseconds:
                skip -= 1
            elif entry.nanoseconds >= cursor.nanoseconds:
                kept.append(mended(entry) if mend and follows else entry)
        capture.add(reader, kept)
        if capture.is_over:
            break
    capture.settle()


def blocks_of_entries(read: Callable[[int], bytes]) -> Iterator[list[Entry]]:
    """The whole entries of each block that `read` gives as it comes; the end is an empty block."""
    rest = b""
    while block := read(BLOCK_BYTES):
        rest += block
        entries = []
        start = 0
        while len(rest) - start >= HEADER.size:
            stream, size = HEADER.unpack_from(rest, start)
            end = start + HEADER.size + size
            if len(rest) < end:
                break
            entries.append(parse_entry(stream, rest[start + HEADER.size : end]))
            start = end
        rest = rest[start:]
        yield entries


def is_part(entry: Entry) -> bool:
    """Whether more of the same line follows: such a part is of full size, and has no newline."""
    return len(entry.content) == PART_BYTES and not entry.content.endswith(b"\n")


def mended(entry: Entry) -> Entry:
    """An entry that follows a part, with its newline.

    Whether that line had one cannot be told if nothing came behind it; nearly all have.
    """
    if entry.content.endswith(b"\n") or is_part(entry):
        return entry
    return replace(entry, content=entry.content + b"\n")


def parse_entry(stream: int, frame: bytes) -> Entry:
    """One frame: the time, a space, the bytes. Raises EngineError."""
    stamp, _, content = frame.partition(b" ")
    try:
        return Entry(STREAM_OF[stream], nanoseconds(stamp.decode("ascii")), content)
    except (ValueError, KeyError) as error:
        raise EngineError(f"unreadable log entry {frame[:60]!r}") from error


def nanoseconds(stamp: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time with up to nine digits. Raises ValueError."""
    moment, _, fraction = stamp.partition(".")
    digits = fraction.rstrip("Z").partition("+")[0].partition("-")[0]
    zone = fraction[len(digits) :] if fraction else ""
    seconds = datetime.fromisoformat(moment.rstrip("Z") + (zone or "Z").replace("Z", "+00:00"))
    return int(seconds.timestamp()) * 10**9 + int((digits or "0").ljust(9, "0")[:9])
