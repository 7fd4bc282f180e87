"""The cell's connection to its guard: starts it, gives it the watchlist, reads its status.

A lock ensures one guard for a cell: the cell takes it for the guard and passes it on at the start,
so that it is held without a gap. The guard has its own session: neither Ctrl-C nor the end of the
cell or of the cell's supervisor reaches it. Two rules exclude that attempts stay unwatched: the
cell writes its list before it checks whether a guard is alive, and a guard that is about to end
releases the lock before it reads the list for the last time.
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

# A guard that ends right after its start is broken: it is not started again at once.
PAUSE_SECONDS = 5.0
ENDING_SECONDS = 1.0
# For the last check of a guard that is not needed any more, and may just be starting.
DISMISS_SECONDS = 10.0
_POLL_SECONDS = 0.02
# What the guard has no use for stays out of its environment: secrets first of all.
_OURS = ("CELLRUN_", "CELERY_")


class GuardLink(Protocol):
    """What a cell needs of its guard."""

    boot_id: str

    def read(self) -> Watchlist:
        """The list as it is, an earlier process of the cell may have written it."""

    def status(self) -> GuardStatus:
        """Return the last status of the guard."""

    def write(self, watchlist: Watchlist) -> None:
        """Show the guard another list. Raises OSError."""

    def stand_by(self) -> bool:
        """Whether a guard lives, started now if need be."""

    def permit(self, uid: str) -> Permit:
        """Whether the container of an attempt may be created or started now; from any thread."""

    def tick(self) -> None:
        """Let a guard that lives in the cell do what is due."""

    @property
    def wakes_at(self) -> float:
        """When `tick` has something to do, in seconds since boot."""

    def dismiss(self) -> None:
        """End with the cell: a guard without attempts to watch ends, too."""


class ProcessLink:
    """A Link to a guard in a process of its own."""

    wakes_at = float("inf")

    def __init__(self, home: Path, driver: str, cell: str = "") -> None:
        """`home` is the cell's; `driver` is docker or process; `cell` is for the guard's log."""
        self._cell = cell
        self.boot_id = clock.boot_id()
        self._home = home
        self._driver = driver
        self._folder = GuardFolder(home)
        self._watchlist = self._folder.read_watchlist()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = float("-inf")

    def read(self) -> Watchlist:
        """See Link."""
        return self._watchlist

    def status(self) -> GuardStatus:
        """See Link."""
        return self._folder.read_status()

    def write(self, watchlist: Watchlist) -> None:
        """See Link. It need not survive a power cut, after which no container runs on."""
        self._folder.write_watchlist(watchlist)
        self._watchlist = watchlist

    def stand_by(self) -> bool:
        """See Link."""
        if self._process is not None:
            self._process.poll()  # one that is over must not stay a zombie
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
        """See Link."""
        return permit(self._watchlist, self.status(), uid, clock.boot_seconds())

    def tick(self) -> None:
        """The guard has a clock of its own."""

    def dismiss(self) -> None:
        """See Link. A guard with attempts to watch stays."""
        if self._watchlist.attempts:
            return
        try:
            if not self._is_alone():
                number = self._watchlist.number + 1
                self.write(Watchlist(number, self.boot_id, is_last=True))
            end = clock.boot_seconds() + DISMISS_SECONDS
            while not self._is_alone():
                if clock.boot_seconds() > end:
                    log.warning("guard_still_running")
                    return
                time.sleep(_POLL_SECONDS)
            if self._process is not None:
                self._process.wait(DISMISS_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.error("guard_not_dismissed", error=str(error))

    def _is_alone(self) -> bool:
        """Whether no guard lives."""
        lock = self._folder.take_lock()
        if lock is not None:
            os.close(lock)
        return lock is not None

    def _start(self, lock: int) -> bool:
        now = clock.boot_seconds()
        if now < self._started_at + PAUSE_SECONDS:
            return False
        self._started_at = now
        if self._process is not None:  # it has let go of the lock, so it is ending
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_SECONDS)
        command = ["-m", "workers.guard", str(self._home), self._driver, str(lock), self._cell]
        environment = {name: v for name, v in os.environ.items() if not name.startswith(_OURS)}
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
