"""Inputs by their SHA-256, and output streams of attempts, in files."""

import fcntl
import hashlib
import os
import re
import tempfile
from pathlib import Path
from uuid import UUID

from controlplane.storage.folder.root import check_space, root, sync_folder
from controlplane.storage.folder.trash import discard
from controlplane.storage.interface import (
    MAX_STREAM_BYTES,
    LogPiece,
    StreamFull,
    WrongOffset,
    find_lines,
    input_of,
    log_of,
    logs_of,
    without_incomplete_character,
)

_SHA256 = re.compile(r"[0-9a-f]{64}")


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


def read_input(digest: str) -> bytes | None:
    """Return the content with this SHA-256, or None if it is not stored."""
    if not _SHA256.fullmatch(digest):
        return None
    try:
        return _input_path(digest).read_bytes()
    except FileNotFoundError:
        return None


def link_to_input(digest: str) -> None:
    """Return None: web sends inputs itself."""


def append_log(uid: UUID, stream: str, *, offset: int, content: bytes) -> int:
    """Append `content` if the stream has `offset` bytes; return its new size.

    Raise StoreFull, WrongOffset, or StreamFull after storing the part that fits.
    """
    check_space(len(content))
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
    content = without_incomplete_character(content)
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
    return start + (find_lines(content, lines) or 0)


def remove_logs(uid: UUID) -> None:
    """Remove the output of an attempt. Idempotent. Raise OSError if nothing was removed."""
    discard(root() / logs_of(uid))


def _input_path(digest: str) -> Path:
    return root() / input_of(digest)


def _log_path(uid: UUID, stream: str) -> Path:
    return root() / log_of(uid, stream)
