"""Inputs by their SHA-256, and output streams of attempts, in a local folder.

inputs/<2 hex>/<sha256>       logs/<2 hex>/<attempt uid>/<stream>
"""

import fcntl
import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.conf import settings

from controlplane.storage.trash import discard

STREAMS = ("stdout", "stderr")
MAX_STREAM_BYTES = 64 * 1024 * 1024  # of one stream of an attempt
_SHA256 = re.compile(r"[0-9a-f]{64}")


class WrongOffset(Exception):
    """The stream has another size: `size` is the offset at which to continue."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the stream has {size} bytes: continue at this offset")
        self.size = size


class StreamFull(Exception):
    """The stream has reached its maximum size; further output is not stored."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the stream is full: it stores at most {MAX_STREAM_BYTES} bytes")
        self.size = size


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of a stream, and the offset at which the next one begins."""

    content: bytes
    next_offset: int


def put_input(content: bytes) -> str:
    """Store `content` durably, once; return its SHA-256 in hex."""
    digest = hashlib.sha256(content).hexdigest()
    path = _input_path(digest)
    if path.exists():
        return digest
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return digest


def sync_folder(folder: Path) -> None:
    """Write the folder to disk, without which the name of a new file may be lost."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_input(digest: str) -> bytes | None:
    """Return the content with this SHA-256, or None if it is not stored."""
    if not _SHA256.fullmatch(digest):
        return None
    try:
        return _input_path(digest).read_bytes()
    except FileNotFoundError:
        return None


def append_log(uid: UUID, stream: str, *, offset: int, content: bytes) -> int:
    """Append `content` if the stream has `offset` bytes; return its new size.

    Raise WrongOffset, or StreamFull after storing the part that fits.
    """
    path = _log_path(uid, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        # Two web processes may receive the same piece.
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        if size != offset:
            raise WrongOffset(size)
        free = MAX_STREAM_BYTES - size
        file.write(content[:free])
        file.flush()
        os.fdatasync(file.fileno())
        if len(content) > free:
            raise StreamFull(MAX_STREAM_BYTES)
        return size + len(content)


def read_log(uid: UUID, stream: str, *, offset: int, limit: int) -> LogPiece:
    """Return at most `limit` bytes of a stream from `offset` on; none at or after its end."""
    try:
        with _log_path(uid, stream).open("rb") as file:
            file.seek(offset)
            content = file.read(limit)
    except FileNotFoundError:
        return LogPiece(b"", offset)
    content = _without_incomplete_character(content)
    return LogPiece(content, offset + len(content))


def find_tail(uid: UUID, stream: str, *, lines: int, limit: int) -> int:
    """Return the offset of the last `lines` lines, at most `limit` bytes before the end."""
    try:
        with _log_path(uid, stream).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(size - limit, 0)
            file.seek(start)
            content = file.read(limit)
    except FileNotFoundError:
        return 0
    end = len(content) - 1 if content.endswith(b"\n") else len(content)
    for _ in range(lines):
        end = content.rfind(b"\n", 0, end)
        if end < 0:
            return start
    return start + end + 1


def _without_incomplete_character(content: bytes) -> bytes:
    """Return `content` without an incomplete UTF-8 character at its end, unless it is short."""
    for back in range(1, min(len(content) - 1, 3) + 1):
        lead = content[-back]
        if lead & 0b1100_0000 == 0b1100_0000:
            length = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2
            return content[:-back] if length > back else content
        if lead & 0b1000_0000 == 0:
            break
    return content


def _input_path(digest: str) -> Path:
    return settings.CELLRUN.artifact_root / "inputs" / digest[:2] / digest


def remove_logs(uid: UUID) -> None:
    """Remove the output of an attempt. Idempotent. Raise OSError if nothing was removed."""
    discard(_log_path(uid, STREAMS[0]).parent)


def _log_path(uid: UUID, stream: str) -> Path:
    if stream not in STREAMS:
        raise ValueError(f"there is no stream {stream!r}; streams are {', '.join(STREAMS)}")
    return settings.CELLRUN.artifact_root / "logs" / uid.hex[-2:] / str(uid) / stream
