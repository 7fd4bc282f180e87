"""`python -m workers.guard HOME DRIVER LOCK CELL`: the guard of one cell, as `link` starts it.

LOCK is the descriptor of the guard's lock, inherited from its starter. The guard ends when no
exclusive attempt is left and the cell has ended; after SIGTERM, as soon as none is left.
"""

import os
import queue
import signal
import sys
import threading
from pathlib import Path

import structlog

from workers import clock
from workers.drivers.docker.driver import DockerEngine
from workers.drivers.process.engine import ProcessEngine
from workers.guard.decisions import Guard
from workers.guard.engine_control import ContainerEngineControl, KillableEngine
from workers.guard.folder import GuardFolder
from workers.guard.watchlist import GuardStatus, Watchlist
from workers.logs import configure_logging

log = structlog.get_logger("workers.guard")

# Between two reads of the watchlist; it delays an exclusive start.
POLL_SECONDS = 0.1
# Between two checks whether the cell is alive, while no attempt is watched.
IDLE_SECONDS = 1.0
# Timeout of a call to the engine, which is then repeated.
CALL_SECONDS = 5.0


def main(arguments: list[str]) -> int:
    """Run until no guard is needed any more; return the exit code."""
    home, driver, lock, cell = Path(arguments[0]), arguments[1], int(arguments[2]), arguments[3]
    configure_logging("INFO", process="guard", cell=cell)
    os.set_inheritable(lock, False)
    # Reentrant, unlike threading.Event: a signal may interrupt the handler of another one.
    dismissals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: dismissals.put(received))
    log.info("guard_started", pid=os.getpid())
    GuardLoop(GuardFolder(home), _make_engine(driver, home), lock, dismissals).serve()
    log.info("guard_stopped", pid=os.getpid())
    return 0


def _make_engine(driver: str, home: Path) -> KillableEngine:
    if driver == "docker":
        return DockerEngine(installation="", cell="", home=home, call_seconds=CALL_SECONDS)
    return ProcessEngine(home=home, max_log_bytes=0)


class GuardLoop:
    """The guard's loop."""

    def __init__(
        self,
        folder: GuardFolder,
        engine: KillableEngine,
        lock: int,
        dismissals: queue.SimpleQueue[int],
    ) -> None:
        self._folder = folder
        self._lock: int | None = lock
        self._dismissals = dismissals
        self._watchlist = Watchlist()
        self._checked_at = float("-inf")
        self._fenced: set[str] = set()
        boot_id = clock.boot_id()
        self._guard = Guard(
            ContainerEngineControl(engine),
            self._publish_status,
            boot_id=boot_id,
            status=folder.read_status(),
        )

    def serve(self) -> None:
        """Return when no guard is needed any more."""
        pause = threading.Event()
        while not self._is_finished():
            pause.wait(POLL_SECONDS)

    def _is_finished(self) -> bool:
        now = clock.boot_seconds()
        self._read()
        self._guard.tick(self._watchlist, now)
        if not self._guard.is_done:
            return False
        is_dismissed = not self._dismissals.empty() or self._watchlist.is_last
        if not is_dismissed:
            if now < self._checked_at + IDLE_SECONDS:
                return False
            self._checked_at = now
            if self._folder.is_cell_alive():
                return False
        return self._release_lock()

    def _release_lock(self) -> bool:
        """Release the lock; take it back and return False if a new watchlist was written before."""
        assert self._lock is not None
        os.close(self._lock)
        number = self._watchlist.number
        self._read()
        if self._watchlist.number == number:
            return True
        self._lock = self._folder.take_lock()
        return self._lock is None

    def _read(self) -> None:
        """Read the watchlist; if its file is missing, keep the last one."""
        self._watchlist = self._folder.find_watchlist() or self._watchlist

    def _publish_status(self, status: GuardStatus) -> None:
        for uid in status.fenced.keys() - self._fenced:
            log.info("lease_expired", attempt=uid)
        self._fenced = set(status.fenced)
        try:
            self._folder.publish(status)
        except OSError as error:
            log.error("status_not_written", error=str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
