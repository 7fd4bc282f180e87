"""The file of a journal, with reserved space, so that a cell survives a full disk.

Zeros at the end of the file reserve space, which suffices to record the ends of all attempts in
charge. A cell whose reserve is too small takes no new work, and continues its current work.
"""

import errno
import os
from pathlib import Path
from typing import Protocol

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors that disappear when files are deleted."""
# Errors of file systems that cannot reserve space; then only the free space of the disk counts.
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
# At least half of it is always reserved: enough for the ends of 100 attempts with full results.
RESERVE_BYTES = 4 << 20
# With less free space on the disk, the cell takes no new work.
MIN_FREE_BYTES = 32 << 20
_BLOCK_BYTES = 64 << 10


class JournalStore(Protocol):
    """Stores lines. Appended lines are durable only after `sync`."""

    def read(self) -> bytes:
        """Return the whole content."""

    def append(self, lines: bytes) -> None:
        """Add lines at the end. Raise OSError, after which nothing was added."""

    def sync(self) -> None:
        """Make all appended lines durable.

        Raise OSError, after which all lines since the last successful sync must be appended again.
        """

    def cut(self, length: int) -> None:
        """Truncate the content to `length` bytes, durably."""

    def replace(self, content: bytes) -> None:
        """Replace the whole content, atomically and durably. Raise OSError."""

    def size(self) -> int:
        """Return the number of bytes so far."""

    def lacks_room(self) -> bool:
        """Return whether the disk is full, or nearly so."""


class FileStore:
    """A journal in a file. `serving` holds a lock against other processes of the cell."""

    def __init__(
        self,
        path: Path,
        *,
        fsync: bool = True,
        reserve_bytes: int = RESERVE_BYTES,
        min_free_bytes: int = MIN_FREE_BYTES,
    ) -> None:
        self._path = path
        self._fsync = fsync
        self._reserve_bytes = reserve_bytes
        self._min_free_bytes = min_free_bytes
        self._is_full = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open(path)
        self._end = self._safe_end = _find_end(self._file)
        self._reserve()

    def read(self) -> bytes:
        """See JournalStore."""
        with self._path.open("rb") as file:
            return file.read(self._end)

    def append(self, lines: bytes) -> None:
        """See JournalStore. The next append overwrites lines that were written partly."""
        rest, at = memoryview(lines), self._end
        while rest:
            count = os.pwrite(self._file, rest, at)
            rest, at = rest[count:], at + count
        self._end = at
        self._reserve()

    def sync(self) -> None:
        """See JournalStore."""
        try:
            if self._fsync:
                os.fdatasync(self._file)
        except OSError:
            self._end = self._safe_end
            raise
        self._safe_end = self._end

    def cut(self, length: int) -> None:
        """See JournalStore."""
        os.ftruncate(self._file, length)
        os.fsync(self._file)
        self._end = self._safe_end = length
        self._reserve()

    def replace(self, content: bytes) -> None:
        """See JournalStore."""
        draft = self._path.with_suffix(".new")
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        os.close(self._file)
        self._file = _open(self._path)
        self._end = self._safe_end = len(content)
        self._reserve()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def size(self) -> int:
        """See JournalStore."""
        return self._end

    def lacks_room(self) -> bool:
        """See JournalStore."""
        self._reserve()
        disk = os.fstatvfs(self._file)
        # Hysteresis: a full disk needs twice as much free space to count as not full.
        needed = self._min_free_bytes * (2 if self._is_full else 1)
        self._is_full = (
            self._reserved() < self._reserve_bytes // 2 or disk.f_bavail * disk.f_frsize < needed
        )
        return self._is_full

    def _reserved(self) -> int:
        return os.fstat(self._file).st_size - self._end

    def _reserve(self) -> None:
        if self._reserved() >= self._reserve_bytes // 2:
            return
        try:
            os.posix_fallocate(self._file, self._end, self._reserve_bytes)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                self._reserve_bytes = 0
            elif error.errno not in NO_ROOM:
                raise


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _find_end(file: int) -> int:
    """Return the position of the zeros at the end of the file."""
    end = os.fstat(file).st_size
    while end:
        start = max(end - _BLOCK_BYTES, 0)
        piece = os.pread(file, end - start, start).rstrip(b"\0")
        if piece:
            return start + len(piece)
        end = start
    return 0
