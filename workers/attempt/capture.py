"""The log files of one attempt: bounded, binary safe, and continued without loss or duplication.

The file `cursor` beside `stdout` and `stderr` records for each the last entry of the engine's log
and the length at that entry. After a crash the next reader cuts the files to those lengths and
reads the following entries: each stream repeats the same bytes in the same order. So the cursor may
lag behind and is not written for every line. Each stream has its own cursor, because engines keep
order within a stream only.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

STREAMS = ("stdout", "stderr")
INCOMPLETE = "incomplete"  # a file of the spawner: it could not write some output
# The engine delivers single lines; a cursor write per line took 0.2 ms of 0.24 (measured).
CURSOR_SECONDS = 0.2
PART_BYTES = 16 * 1024  # Docker splits a longer line into parts of this size


class CaptureSuperseded(Exception):
    """Another reader has taken over the engine's log; this reader must stop."""


class DiskFull(Exception):
    """The disk is full: the entries were not kept."""


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """The last entry of a stream: its time, the entries written with that time, and the total
    bytes.

    All parts of a long line have the time of its first part, so the time alone is not exact.
    `is_within`: more parts of that line follow.
    """

    nanoseconds: int = 0
    entries: int = 0
    size: int = 0
    is_within: bool = False

    def after(self, entries: Sequence["LogEntry"], size: int) -> "StreamCursor":
        """Return the cursor after writing these entries, when the stream is `size` bytes long."""
        at, count, is_within = self.nanoseconds, self.entries, self.is_within
        for entry in entries:
            count = count + 1 if entry.nanoseconds == at else 1
            at, is_within = entry.nanoseconds, entry.is_part
        return StreamCursor(at, count, size, is_within)


Cursors = Mapping[str, StreamCursor]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the engine's log: a line, or a part of a long one."""

    stream: str
    nanoseconds: int
    content: bytes

    @property
    def is_part(self) -> bool:
        """Whether more of the same line follows: the entry has the full size and no newline."""
        return len(self.content) == PART_BYTES and not self.content.endswith(b"\n")


def cut_note(limit: int) -> bytes:
    """Return the text that ends a stream longer than `limit` bytes."""
    return f"\n[cellrun: output beyond {limit} bytes was cut here]\n".encode()


def _write_all(file: int, content: bytes) -> int:
    """Write all of `content` and return its length. Raise OSError, also if the disk is full."""
    written = 0
    while written < len(content):
        written += os.write(file, content[written:])
    return written


class Capture:
    """The two log files, open for one reader at a time."""

    def __init__(self, folder: Path, limit: int) -> None:
        """Continue the files in `folder`, created if absent; `limit` bytes for each stream."""
        self._open: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.limit = limit
        self._lock = threading.Lock()
        self._reader = 0
        self._cursor_path = folder / "cursor"
        self._cursors = self._read_cursors()
        self._cursor_written_at = 0.0
        self._sizes = {name: self._cut_back(name, self._cursors[name].size) for name in STREAMS}

    def _read_cursors(self) -> Cursors:
        try:
            found = json.loads(self._cursor_path.read_text(encoding="ascii"))
            return {name: StreamCursor(**found[name]) for name in STREAMS}
        except (OSError, ValueError, TypeError, KeyError):
            return dict.fromkeys(STREAMS, StreamCursor())

    def _cut_back(self, name: str, size: int) -> int:
        with open(self.folder / name, "ab") as file:
            if file.tell() > size:
                file.truncate(size)
            return min(file.tell(), size)

    def begin(self) -> tuple[int, Cursors]:
        """Return a new reader's token and its cursors; it supersedes all earlier readers."""
        with self._lock:
            self._reader += 1
            return self._reader, self._cursors

    def is_full(self, name: str) -> bool:
        """Return whether the stream was cut: no more of it is kept."""
        return self._sizes[name] > self.limit

    @property
    def is_over(self) -> bool:
        """Whether every stream was cut, so that no more needs to be read."""
        return all(self.is_full(name) for name in STREAMS)

    def add(self, reader: int, entries: Sequence[LogEntry]) -> None:
        """Append entries of the engine's log, oldest first, all or none.

        Raise CaptureSuperseded, or DiskFull: the caller may retry.
        """
        with self._lock:
            if reader != self._reader:
                raise CaptureSuperseded
            if not entries:
                return
            of_stream = {name: [e for e in entries if e.stream == name] for name in STREAMS}
            try:
                for name in STREAMS:
                    self._append(name, b"".join(e.content for e in of_stream[name]))
            except OSError as error:
                self._roll_back()
                raise DiskFull(str(error)) from error
            self._cursors = {
                name: self._cursors[name].after(of_stream[name], self._sizes[name])
                for name in STREAMS
            }
            if time.monotonic() - self._cursor_written_at >= CURSOR_SECONDS:
                self._write_cursor()

    def _roll_back(self) -> None:
        """Truncate the files to their cursors after entries that did not all fit."""
        for name in STREAMS:
            size = self._sizes[name] = self._cursors[name].size
            if name in self._open:
                os.ftruncate(self._open[name], size)

    def settle(self) -> None:
        """Write the cursor and close the files: a reader reached the end of the log."""
        with self._lock:
            self._write_cursor()
            self._close_files()

    def _close_files(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        """Close the files of a reader that was aborted."""
        self._close_files()

    def _append(self, name: str, content: bytes) -> None:
        kept = self._kept(name, content)
        if not kept:
            return
        # Opening the file for each line dominated the time of a task with much output.
        file = self._open.get(name)
        if file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            file = self._open[name] = os.open(self.folder / name, flags, 0o644)
        self._sizes[name] += _write_all(file, kept)

    def _kept(self, name: str, content: bytes) -> bytes:
        room = self.limit - self._sizes[name]
        if room < 0:
            return b""
        if len(content) <= room:
            return content
        return content[:room] + cut_note(self.limit)

    def _write_cursor(self) -> None:
        text = json.dumps({name: asdict(self._cursors[name]) for name in STREAMS})
        temporary = self._cursor_path.with_suffix(".new")
        with contextlib.suppress(OSError):  # of a full disk: the old cursor lags behind
            temporary.write_text(text, encoding="ascii")
            os.replace(temporary, self._cursor_path)
        self._cursor_written_at = time.monotonic()
