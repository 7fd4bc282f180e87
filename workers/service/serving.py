"""A cell process from start to Goodbye: one lock, one journal file, one loop, one Celery worker.

`python -m workers` serves one cell, `python -m workers.fleet` many.
"""

import fcntl
import gc
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog
from celery.signals import worker_shutting_down

from workers import clock
from workers.agent.cell import Cell
from workers.agent.inputs import CellInput, OrderMessage, ScanResult
from workers.agent.reaper import Reaper
from workers.config import CellConfig
from workers.drivers.base import Driver, Listener
from workers.drivers.memory import MemoryDriver
from workers.exec.connection import CellConnector
from workers.exec.sessions import CellSessions
from workers.guard.link import GuardLink, ProcessLink
from workers.guard.local import LocalGuardLink
from workers.journal import JournalFile
from workers.journal_file import FileStore
from workers.logs import configure_logging
from workers.service.bus import RedisBrokerClient
from workers.service.celery import make_app, register_orders, worker_arguments
from workers.service.consumer_watchdog import ConsumerWatch
from workers.service.flower import FlowerEvents
from workers.service.host import CellHost, ScheduledComponent
from workers.service.key_watch import KeyWatch

log = structlog.get_logger("workers")

# Announced time until the next start: a restart by a supervisor, an upgrade of the package.
EXPECTED_SECONDS = 120
LOCK_TRIES, LOCK_PAUSE_SECONDS = 5, 0.05
COLLECTOR_THRESHOLDS = (20_000, 20, 20)

MakeDriver = Callable[[CellConfig, Listener], Driver]


class Watcher(Protocol):
    """A component with a thread of its own."""

    def start(self) -> None:
        """Start the thread."""

    def close(self) -> None:
        """End the thread."""


def serve(
    configs: Sequence[CellConfig],
    make_driver: MakeDriver,
    *,
    name: str,
    schedule: ScheduledComponent | None = None,
) -> int:
    """Serve the cells, which share the first one's home, until stopped; return the exit code.

    `name`: of the worker in Flower. `schedule`: a component that the loop drives beside its cells.
    """
    config = configs[0]
    configure_logging(
        config.log_level, process=name, cell=config.name if len(configs) == 1 else None
    )
    config.home.mkdir(parents=True, exist_ok=True)
    if _lock_journal(config.home / "journal.lock") is None:
        sys.stderr.write(f"another process runs the cell {config.name} in {config.home}\n")
        return 3
    journals = JournalFile(FileStore(config.home / "journal"))
    host = CellHost(journals, RedisBrokerClient(config.sender_url), schedule)
    cells: list[Cell] = []
    watchers: list[Watcher] = []
    for cell_config in configs:
        driver = make_driver(cell_config, _receiver(host, cell_config.name))
        cells.append(
            Cell(
                cell_config,
                journals.journal(cell_config.name),
                driver,
                guard=make_link(cell_config, driver),
                execs=make_sessions(cell_config, driver),
            )
        )
        host.add(cells[-1])
        if isinstance(driver, MemoryDriver):  # its containers ended with the previous process
            host.put(cell_config.name, ScanResult((), ()))
        else:
            watchers += [
                Reaper(driver, cell_config.home / "work", _receiver(host, cell_config.name)),
                KeyWatch(cell_config, host.restart),
            ]
    _run(host, cells, watchers, name, config)
    return 0


def _run(
    host: CellHost,
    cells: Sequence[Cell],
    watchers: Sequence[Watcher],
    name: str,
    config: CellConfig,
) -> None:
    """Run the loop and the Celery worker; return when the worker was stopped."""
    host.prepare()
    app = make_app(config.receiver_url, [cell.queue for cell in cells])
    events = FlowerEvents(app, name)
    host.watch(events)
    watch = ConsumerWatch(config.receiver_url, [cell.queue for cell in cells], host.restart)
    watchers = [watch, *watchers]

    def take_order(cell: str, text: str) -> None:
        watch.note_taken()
        host.put(cell, OrderMessage(text))

    register_orders(app, take_order)

    def leave() -> None:
        for watcher in watchers:
            watcher.close()
        host.stop(expected_seconds=EXPECTED_SECONDS, evacuate=config.evacuate)
        for cell in cells:
            cell.exclusives.dismiss()
        events.stop()

    shutdown = ShutdownThread(leave)
    worker_shutting_down.connect(shutdown.request, weak=False)
    shutdown.start()
    events.start()
    host.start()
    for watcher in watchers:
        watcher.start()
    for cell in cells:
        log.info("cell_started", cell=cell.name, incarnation=cell.incarnation)
    _relax_collector()
    try:
        app.worker_main(worker_arguments(name))
        shutdown.request()
    finally:
        shutdown.join()


def _relax_collector() -> None:
    """Let the garbage collector run less often, and skip what the start has allocated.

    With Python's thresholds it takes a quarter of the loop's time when thousands of attempts run.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


class ShutdownThread:
    """Calls `leave` in its own thread, once, when requested.

    Celery announces its end in a signal handler, which may interrupt the main thread anywhere.
    Waiting there for the loop would deadlock if the loop needs a lock that the main thread holds.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()  # reentrant
        self._is_requested = False
        self._leave = leave
        self._thread = threading.Thread(target=self._run, name="shutdown", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for a request."""
        self._thread.start()

    def request(self, **_: object) -> None:
        """Request the call of `leave`. Repeatable, also from a signal handler."""
        self._is_requested = True
        self._requests.put(None)

    def join(self) -> None:
        """Wait for the end of `leave`, if requested: after a crash it is not called."""
        if self._is_requested:
            self._thread.join()

    def _run(self) -> None:
        self._requests.get()
        self._leave()


def _receiver(host: CellHost, cell: str) -> Callable[[CellInput], None]:
    return lambda event: host.put(cell, event)


def _lock_journal(path: Path) -> int | None:
    """Take the lock of the cell's home; return None if another process of the cell holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            # A guard holds the lock briefly to check whether a cell is alive.
            time.sleep(LOCK_PAUSE_SECONDS)
    os.close(lock)
    return None


def make_sessions(config: CellConfig, driver: Driver) -> CellSessions:
    """Return the sessions of a cell."""
    connector = CellConnector(control_url=config.control_url, cell=config.name, key=config.key)
    return CellSessions(
        cell=config.name,
        connect=connector.connect,
        execute=driver.execute,
        is_allowed=config.exec_allowed,
    )


def make_link(config: CellConfig, driver: Driver) -> GuardLink:
    """Return the link to the guard for this driver."""
    if isinstance(driver, MemoryDriver):
        return LocalGuardLink(
            driver.engine,
            wall=clock.wall_seconds,
            boot=clock.boot_seconds,
            boot_id=clock.boot_id(),
        )
    return ProcessLink(config.home, config.driver, config.name)
