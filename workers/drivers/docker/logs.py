"""Parse the Engine's log stream into entries: stream, time in nanoseconds, bytes."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

from workers.attempt.capture import Capture, Cursors, LogEntry
from workers.attempt.runtime import EngineError

HEADER = struct.Struct(">BxxxL")
STREAM_OF = {0: "stdout", 1: "stdout", 2: "stderr"}
BLOCK_BYTES = 64 * 1024
# The engine stamps a line before it logs it, so entries of the other stream may precede it with
# later times: up to 0.7 ms later (measured on two cores that both streams kept busy).
OVERTAKING_NANOSECONDS = 2 * 10**9


def since(cursors: Cursors) -> str:
    """Return the `since` parameter (inclusive) that returns all entries from the cursors on.

    This includes entries that another stream may have overtaken, and the rest of a partly read
    line.
    """
    latest = max(cursor.nanoseconds for cursor in cursors.values())
    begun = [cursor.nanoseconds for cursor in cursors.values() if cursor.is_within]
    earliest = max(min([latest - OVERTAKING_NANOSECONDS, *begun]), 0)
    seconds, nanoseconds = divmod(earliest, 10**9)
    return f"{seconds}.{nanoseconds:09d}" if earliest else "0"


def copy_entries(
    read: Callable[[int], bytes],
    capture: Capture,
    reader: int,
    cursors: Cursors,
    *,
    joins_lines: bool,
) -> None:
    """Add entries that `read` returns to `capture`, from the cursors on. Raise CaptureSuperseded.

    `joins_lines`: the last part of a long line has no newline (Docker's local log driver).
    """
    skip = {stream: cursor.entries for stream, cursor in cursors.items()}
    is_within = dict.fromkeys(STREAM_OF.values(), False)  # the last entry was part of a long line
    for block in blocks_of_entries(read):
        kept = []
        for entry in block:
            known = cursors[entry.stream].nanoseconds
            follows, is_within[entry.stream] = is_within[entry.stream], entry.is_part
            if skip[entry.stream] and entry.nanoseconds == known:
                skip[entry.stream] -= 1
            elif entry.nanoseconds >= known:
                kept.append(with_newline(entry) if joins_lines and follows else entry)
        capture.add(reader, kept)
        if capture.is_over:
            break
    capture.settle()


def blocks_of_entries(read: Callable[[int], bytes]) -> Iterator[list[LogEntry]]:
    """Yield the complete entries of each block that `read` returns; an empty block is the end."""
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


def with_newline(entry: LogEntry) -> LogEntry:
    """Return an entry that follows a part of a line, with a newline.

    At the end of a stream it is unknown whether the last line had one; nearly all have.
    """
    if entry.content.endswith(b"\n") or entry.is_part:
        return entry
    return replace(entry, content=entry.content + b"\n")


def parse_entry(stream: int, frame: bytes) -> LogEntry:
    """Parse one frame: the time, a space, the bytes. Raise EngineError."""
    stamp, _, content = frame.partition(b" ")
    try:
        return LogEntry(STREAM_OF[stream], nanoseconds(stamp.decode("ascii")), content)
    except (ValueError, KeyError) as error:
        raise EngineError(f"unreadable log entry {frame[:60]!r}") from error


def nanoseconds(stamp: str) -> int:
    """Return nanoseconds since 1970 of an RFC 3339 time with up to 9 digits. Raise ValueError."""
    moment, _, fraction = stamp.partition(".")
    digits = fraction.rstrip("Z").partition("+")[0].partition("-")[0]
    zone = fraction[len(digits) :] if fraction else ""
    seconds = datetime.fromisoformat(moment.rstrip("Z") + (zone or "Z").replace("Z", "+00:00"))
    return int(seconds.timestamp()) * 10**9 + int((digits or "0").ljust(9, "0")[:9])
