"""Scan for containers and folders of attempts at the start and each minute, for the cell to sweep.

The scan has its own thread, because an engine that hangs must not delay heartbeats. The cell, which
has the records, decides. Engines list containers with the labels of this installation and cell, and
the folder belongs to the cell alone.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from workers.agent.inputs import ScanResult
from workers.attempt.runtime import EngineAway
from workers.drivers.base import Driver

log = structlog.get_logger(__name__)

SCAN_SECONDS = 60.0
# Interval until the first scan has succeeded.
FIRST_SCAN_SECONDS = 5.0


class Reaper:
    """Scans the engine and the workspaces of one cell."""

    def __init__(
        self,
        driver: Driver,
        workspaces: Path,
        receive: Callable[[ScanResult], None],
        *,
        scan_seconds: float = SCAN_SECONDS,
    ) -> None:
        self._driver = driver
        self._workspaces = workspaces
        self._receive = receive
        self._scan_seconds = scan_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop scanning, without waiting for a scan that the engine does not answer."""
        self._closed.set()

    def scan(self) -> ScanResult | None:
        """Return existing containers and folders; None: the engine does not answer."""
        # Folders first, so that every folder in the result is older than the list of containers.
        folders = _names(self._workspaces)
        try:
            containers = [item.uid for item in self._driver.find()]
        except EngineAway as error:
            log.warning("leftovers_not_listed", error=str(error))
            return None
        return ScanResult(tuple(containers), tuple(folders))

    def _run(self) -> None:
        pause = min(FIRST_SCAN_SECONDS, self._scan_seconds)
        while not self._closed.is_set():
            try:
                seen = self.scan()
            except Exception:  # the next scan follows, whatever the error
                log.exception("leftovers_check_failed")
                seen = None
            if seen is not None and not self._closed.is_set():
                self._receive(seen)
                pause = self._scan_seconds
            self._closed.wait(pause)


def _names(folder: Path) -> Sequence[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return ()
