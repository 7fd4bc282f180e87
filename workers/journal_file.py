"""The file of a journal, with reserved space, so that a full disk ends no cell.

Zeros at the end of the file reserve space. It suffices to record the ends of all attempts in
charge; a cell whose reserve is too small takes no new work, and continues with the old.
"""

import errno
import os
from pathlib import Path
from typing import Protocol

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors that disappear when files are deleted."""
# File systems that cannot keep room for a file; what is free of the disk has to do then.
_NO_RESERVES = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
# At least half of it is always ahead: room for the ends of a hundred attempts with full results.
RESERVE_BYTES = 4 << 20
# With less on the disk no work is begun that would have to write there.
MIN_FREE_BYTES = 32 << 20
_BLOCK_BYTES = 64 << 10


class JournalStore(Protocol):
    """Where lines are kept. What was appended is safe only after `sync`."""

    def read(self) -> bytes:
        """Everything that survived."""

    def append(self, lines: bytes) -> None:
        """Add lines at the end. Raises OSError, and then nothing was added."""

    def sync(self) -> None:
        """Make everything appended survive a crash of the machine.

        Raises OSError; what was appended since the last one that succeeded must then come again.
        """

    def cut(self, length: int) -> None:
        """Drop everything behind the first `length` bytes, durably."""

    def replace(self, content: bytes) -> None:
        """Put `content` in place of everything, atomically and durably. Raises OSError."""

    def size(self) -> int:
        """Bytes appended so far."""

    def lacks_room(self) -> bool:
        """Whether the disk is full, or nearly so."""


class FileStore:
    """A file. Its opener excludes other processes of the cell (`serving`)."""

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
        self._make_room()

    def read(self) -> bytes:
        """See Store."""
        with self._path.open("rb") as file:
            return file.read(self._end)

    def append(self, lines: bytes) -> None:
        """See Store. What was written of lines that do not fit is written over by the next."""
        rest, at = memoryview(lines), self._end
        while rest:
            count = os.pwrite(self._file, rest, at)
            rest, at = rest[count:], at + count
        self._end = at
        self._make_room()

    def sync(self) -> None:
        """See Store."""
        try:
            if self._fsync:
                os.fdatasync(self._file)
        except OSError:
            self._end = self._safe_end
            raise
        self._safe_end = self._end

    def cut(self, length: int) -> None:
        """See Store."""
        os.ftruncate(self._file, length)
        os.fsync(self._file)
        self._end = self._safe_end = length
        self._make_room()

    def replace(self, content: bytes) -> None:
        """See Store."""
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        os.close(self._file)
        self._file = _open(self._path)
        self._end = self._safe_end = len(content)
        self._make_room()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def size(self) -> int:
        """See Store."""
        return self._end

    def lacks_room(self) -> bool:
        """See Store."""
        self._make_room()
        disk = os.fstatvfs(self._file)
        # Twice as much until it counts as room again, or it would be full and not full by turns.
        needed = self._min_free_bytes * (2 if self._is_full else 1)
        self._is_full = (
            self._ahead() < self._reserve_bytes // 2 or disk.f_bavail * disk.f_frsize < needed
        )
        return self._is_full

    def _ahead(self) -> int:
        return os.fstat(self._file).st_size - self._end

    def _make_room(self) -> None:
        if self._ahead() >= self._reserve_bytes // 2:
            return
        try:
            os.posix_fallocate(self._file, self._end, self._reserve_bytes)
        except OSError as error:
            if error.errno in _NO_RESERVES:
                self._reserve_bytes = 0
            elif error.errno not in NO_ROOM:
                raise


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _find_end(file: int) -> int:
    """Where the zeros begin with which the file ends."""
    end = os.fstat(file).st_size
    while end:
        start = max(end - _BLOCK_BYTES, 0)
        piece = os.pread(file, end - start, start).rstrip(b"\0")
        if piece:
            return start + len(piece)
        end = start
    return 0
