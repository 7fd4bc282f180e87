"""The cell's connection to its guard: starts it, writes its watchlist, reads its status.

A lock ensures one guard for a cell: the cell takes it and passes the descriptor to the new guard,
so that it is held without a gap. The guard has its own session: neither Ctrl-C nor the end of the
cell or of the cell's supervisor reaches it. Two rules ensure that every attempt is watched: the
cell writes the watchlist before it checks whether a guard is alive, and a guard that is about to
end releases the lock before it reads the watchlist for the last time.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

import structlog

from workers import clock
from workers.attempt.events import Permit
from workers.guard.folder import GuardFolder
from workers.guard.watchlist import GuardStatus, Watchlist, permit

log = structlog.get_logger(__name__)

# Minimum interval between two starts, for a guard that ends right after its start.
PAUSE_SECONDS = 5.0
ENDING_SECONDS = 1.0
# Timeout for the end of a dismissed guard, which may just be starting.
DISMISS_SECONDS = 10.0
_POLL_SECONDS = 0.02
# Variables that the guard does not get: they include secrets.
_OWN_PREFIXES = ("CELLRUN_", "CELERY_")


class GuardLink(Protocol):
    """A cell's interface to its guard."""

    boot_id: str

    def read(self) -> Watchlist:
        """Return the current watchlist, possibly of an earlier process of the cell."""

    def status(self) -> GuardStatus:
        """Return the last status of the guard."""

    def write(self, watchlist: Watchlist) -> None:
        """Replace the watchlist. Raise OSError."""

    def stand_by(self) -> bool:
        """Start the guard if none is running; return whether one is running."""

    def permit(self, uid: str) -> Permit:
        """Return whether an attempt's container may be created or started now. Thread-safe."""

    def tick(self) -> None:
        """Drive a guard that is part of the cell."""

    @property
    def wakes_at(self) -> float:
        """When `tick` must be called next, in seconds since boot."""

    def dismiss(self) -> None:
        """End the guard with the cell, if it has no attempts to watch."""


class ProcessLink:
    """A GuardLink to a guard in a separate process."""

    wakes_at = float("inf")

    def __init__(self, home: Path, driver: str, cell: str = "") -> None:
        """Create a link; `driver` is docker or process, `cell` the name for the guard's log."""
        self._cell = cell
        self.boot_id = clock.boot_id()
        self._home = home
        self._driver = driver
        self._folder = GuardFolder(home)
        self._watchlist = self._folder.read_watchlist()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = float("-inf")

    def read(self) -> Watchlist:
        """See GuardLink."""
        return self._watchlist

    def status(self) -> GuardStatus:
        """See GuardLink."""
        return self._folder.read_status()

    def write(self, watchlist: Watchlist) -> None:
        """See GuardLink. The file need not survive a power cut, which ends all containers."""
        self._folder.write_watchlist(watchlist)
        self._watchlist = watchlist

    def stand_by(self) -> bool:
        """See GuardLink."""
        if self._process is not None:
            self._process.poll()  # reaps an ended guard
        try:
            lock = self._folder.take_lock()
            if lock is None:
                return True
            try:
                return self._start(lock)
            finally:
                os.close(lock)
        except OSError as error:
            log.error("guard_not_started", error=str(error))
            return False

    def permit(self, uid: str) -> Permit:
        """See GuardLink."""
        return permit(self._watchlist, self.status(), uid, clock.boot_seconds())

    def tick(self) -> None:
        """Do nothing: the guard's process has its own loop."""

    def dismiss(self) -> None:
        """See GuardLink. A guard with attempts to watch continues."""
        if self._watchlist.attempts:
            return
        try:
            if not self._is_guard_gone():
                number = self._watchlist.number + 1
                self.write(Watchlist(number, self.boot_id, is_last=True))
            end = clock.boot_seconds() + DISMISS_SECONDS
            while not self._is_guard_gone():
                if clock.boot_seconds() > end:
                    log.warning("guard_still_running")
                    return
                time.sleep(_POLL_SECONDS)
            if self._process is not None:
                self._process.wait(DISMISS_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.error("guard_not_dismissed", error=str(error))

    def _is_guard_gone(self) -> bool:
        """Return whether no guard is running."""
        lock = self._folder.take_lock()
        if lock is not None:
            os.close(lock)
        return lock is not None

    def _start(self, lock: int) -> bool:
        now = clock.boot_seconds()
        if now < self._started_at + PAUSE_SECONDS:
            return False
        self._started_at = now
        if self._process is not None:  # it has released the lock, so it is ending
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_SECONDS)
        command = ["-m", "workers.guard", str(self._home), self._driver, str(lock), self._cell]
        environment = {
            name: v for name, v in os.environ.items() if not name.startswith(_OWN_PREFIXES)
        }
        with self._folder.open_log() as output:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(lock,),
                start_new_session=True,
            )
        log.info("guard_started", pid=self._process.pid)
        return True
