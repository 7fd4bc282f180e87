"""The folder that cell and guard share: the watchlist, the guard's status, its lock and its log.

Files are replaced atomically. They need no fsync: a power cut that loses a file ends its containers
as well.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from controlplane.contract.codec import MalformedMessage
from workers.guard.watchlist import GuardStatus, Watchlist

T = TypeVar("T")
# A longer log is truncated by the next guard.
_LOG_BYTES = 1 << 20


class GuardFolder:
    """The folder `guard` in the cell's home."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "guard"
        self._cell_lock = home / "journal.lock"
        self._folder.mkdir(parents=True, exist_ok=True)

    def read_watchlist(self) -> Watchlist:
        """Return the watchlist; an empty one if none is readable."""
        return self._read("watchlist", Watchlist.read) or Watchlist()

    def find_watchlist(self) -> Watchlist | None:
        """Return the watchlist; None if none is readable."""
        return self._read("watchlist", Watchlist.read)

    def write_watchlist(self, watchlist: Watchlist) -> None:
        """Replace the watchlist. Raise OSError."""
        self._write("watchlist", watchlist.body())

    def read_status(self) -> GuardStatus:
        """Return the last status of the guard; an empty one if none is readable."""
        return self._read("status", GuardStatus.read) or GuardStatus()

    def publish(self, status: GuardStatus) -> None:
        """Replace the status. Raise OSError."""
        self._write("status", status.body())

    def take_lock(self) -> int | None:
        """Take the guard's lock and return its descriptor; None if a guard holds it."""
        return _lock(self._folder / "lock")

    def is_cell_alive(self) -> bool:
        """Return whether a process of the cell runs."""
        lock = _lock(self._cell_lock)
        if lock is not None:
            os.close(lock)
        return lock is None

    def open_log(self) -> IO[bytes]:
        """Open the guard's log; truncate a long one."""
        path = self._folder / "log"
        is_long = path.exists() and path.stat().st_size > _LOG_BYTES
        return path.open("wb" if is_long else "ab")

    def _read(self, name: str, read: Callable[[Mapping[str, Any]], T]) -> T | None:
        try:
            return read(json.loads((self._folder / name).read_bytes()))
        except (OSError, MalformedMessage, ValueError):
            return None

    def _write(self, name: str, body: Mapping[str, Any]) -> None:
        draft = self._folder / f"{name}.new"
        draft.write_text(json.dumps(body), encoding="utf-8")
        os.replace(draft, self._folder / name)


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
