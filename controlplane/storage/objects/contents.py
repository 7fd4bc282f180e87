"""Inputs by their SHA-256, and output streams of attempts, in an object store.

Objects cannot be appended. A stream is a sequence of segments, objects named by their range:

logs/<2 hex>/<attempt uid>/<stream>/<start>-<end>

A piece is added to the last segment, in a new object, until that has 256 KiB. So a stream of the
maximum size has some 500 segments, which one listing returns. The same range of a stream always has
the same content, so two web processes that receive the same piece do no harm: a segment within
another one is ignored and later deleted.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from controlplane.storage.interface import (
    MAX_STREAM_BYTES,
    LogPiece,
    StoreUnavailable,
    StreamFull,
    WrongOffset,
    find_lines,
    input_of,
    log_of,
    logs_of,
    without_incomplete_character,
)
from controlplane.storage.objects.bucket import StoredObject, bucket

SEGMENT_BYTES = 256 * 1024
# A segment may be replaced between the listing and the read.
_READ_TRIES = 5
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"(\d{10})-(\d{10})")


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stream, from `start` to `end`."""

    key: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Stream:
    """The segments of a stream without gaps. `covered`: keys of those within others."""

    segments: list[Segment]
    covered: list[str]

    @property
    def size(self) -> int:
        """Return the size of the stream in bytes."""
        return self.segments[-1].end if self.segments else 0


class _SegmentReplaced(Exception):
    """A segment was replaced since the listing: list again."""


def put_input(content: bytes) -> str:
    """Store `content`, once; return its SHA-256 in hex."""
    digest = hashlib.sha256(content).hexdigest()
    if bucket().find(input_of(digest)) is None:
        bucket().put(input_of(digest), content)
    return digest


def read_input(digest: str) -> bytes | None:
    """Return the content with this SHA-256, or None if it is not stored."""
    return bucket().read(input_of(digest)) if _SHA256.fullmatch(digest) else None


def link_to_input(digest: str) -> str | None:
    """Return a URL from which a stored input can be read."""
    if not _SHA256.fullmatch(digest) or bucket().find(input_of(digest)) is None:
        return None
    return bucket().link("GET", input_of(digest))


def append_log(uid: UUID, stream: str, *, offset: int, content: bytes) -> int:
    """Append `content` if the stream has `offset` bytes; return its new size.

    Raise WrongOffset, or StreamFull after storing the part that fits.
    """
    prefix = log_of(uid, stream)
    present = _list(prefix)
    if present.size != offset:
        raise WrongOffset(present.size)
    kept = content[: MAX_STREAM_BYTES - offset]
    if kept:
        _append(prefix, present, kept)
    if len(content) > len(kept):
        raise StreamFull(MAX_STREAM_BYTES)
    return offset + len(content)


def _append(prefix: str, present: Stream, content: bytes) -> None:
    start, end = present.size, present.size + len(content)
    covered = present.covered
    if present.segments:
        last = present.segments[-1]
        if end - last.start <= SEGMENT_BYTES:
            before = bucket().read(last.key)
            if before is not None:
                start, content = last.start, before + content
                covered = [*covered, last.key]
    bucket().put(segment_key(prefix, start, end), content)
    # If this fails, the next piece repeats it.
    if covered:
        try:
            bucket().delete(covered)
        except StoreUnavailable:
            return


def read_log(uid: UUID, stream: str, *, offset: int, limit: int) -> LogPiece:
    """Return at most `limit` bytes of a stream from `offset` on; none at or after its end."""
    prefix = log_of(uid, stream)
    for _ in range(_READ_TRIES):
        try:
            pieces = _read(_list(prefix), offset, offset + limit)
            content = without_incomplete_character(b"".join(pieces))
            return LogPiece(content, offset + len(content))
        except _SegmentReplaced:
            continue
    raise StoreUnavailable(f"{prefix} changes too often to be read")


def find_tail(uid: UUID, stream: str, *, lines: int, limit: int) -> int:
    """Return the offset of the last `lines` lines, at most `limit` bytes before the end."""
    prefix = log_of(uid, stream)
    for _ in range(_READ_TRIES):
        try:
            return _find_tail(_list(prefix), lines, limit)
        except _SegmentReplaced:
            continue
    raise StoreUnavailable(f"{prefix} changes too often to be read")


def remove_logs(uid: UUID) -> None:
    """Remove the output of an attempt. Idempotent."""
    bucket().delete_all(logs_of(uid))


def _find_tail(present: Stream, lines: int, limit: int) -> int:
    """Read segments from the last one back until they contain the lines."""
    first, begin, content = max(present.size - limit, 0), present.size, b""
    for segment in reversed(present.segments):
        if begin <= first:
            break
        start = max(segment.start, first)
        content = b"".join(_read(present, start, begin)) + content
        begin = start
        found = find_lines(content, lines)
        if found is not None:
            return begin + found
    return first


def _read(present: Stream, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes from `start` to `end`, or to the end of the stream."""
    for segment in present.segments:
        stop = min(segment.end, end)
        if stop <= start:
            continue
        part = bucket().read(segment.key, start - segment.start, stop - segment.start)
        if part is None:
            raise _SegmentReplaced
        yield part
        start = stop


def _list(prefix: str) -> Stream:
    """Return the segments of a stream up to the first gap."""
    stream = Stream([], [])
    found = filter(None, map(_segment, bucket().walk(prefix)))
    for segment in sorted(found, key=lambda item: (item.start, -item.end)):
        if segment.start > stream.size:
            break
        if segment.end <= stream.size:
            stream.covered.append(segment.key)
        else:
            stream.segments.append(segment)
    return stream


def segment_key(prefix: str, start: int, end: int) -> str:
    """Return the key of a segment of the stream at `prefix`."""
    return f"{prefix}/{start:010d}-{end:010d}"


def end_of(key: str) -> int:
    """Return the end of the segment with this key; 0 if it is the key of another object."""
    match = _RANGE.fullmatch(key.rpartition("/")[2])
    return 0 if match is None else int(match[2])


def _segment(found: StoredObject) -> Segment | None:
    match = _RANGE.fullmatch(found.key.rpartition("/")[2])
    if match is None or int(match[2]) - int(match[1]) != found.size:
        return None
    return Segment(found.key, int(match[1]), int(match[2]))
