"""`python -m workers`: one cell, as the environment describes it (see `workers.config`)."""

import fcntl
import logging
import os
import sys
from pathlib import Path

from celery.signals import worker_shutting_down

from workers.bus import RedisBus
from workers.celery import make_app, register_orders, worker_arguments
from workers.cell import Cell, OrderMessage
from workers.config import CellConfig, MalformedSettings
from workers.drivers.registry import make_driver
from workers.flower import FlowerEvents
from workers.host import Host
from workers.journal import FileStore, JournalFile

log = logging.getLogger("workers")

# How long a successor may take: a restart by a supervisor, an upgrade of the package.
EXPECTED_SECONDS = 120


def main() -> int:
    """Run the cell until it is told to end; the exit code."""
    try:
        config = CellConfig.from_env(os.environ)
    except MalformedSettings as error:
        sys.stderr.write(f"settings refused: {error}\n")
        return 2
    logging.basicConfig(
        level=config.log_level, format=f"%(asctime)s %(levelname)s {config.name} %(message)s"
    )
    config.home.mkdir(parents=True, exist_ok=True)
    lock = _lock_journal(config.home / "journal.lock")
    if lock is None:
        sys.stderr.write(f"another process runs the cell {config.name} in {config.home}\n")
        return 3
    run_cell(config)
    return 0


def run_cell(config: CellConfig) -> None:
    """Run one cell; returns when its worker was told to end."""
    journals = JournalFile(FileStore(config.home / "journal"))
    host = Host(journals, RedisBus(config.broker_url))
    driver = make_driver(config, lambda event: host.put(config.name, event))
    cell = Cell(config, journals.journal(config.name), driver)
    host.add(cell)
    host.prepare()
    hostname = f"cell@{config.name}"
    app = make_app(config.broker_url, [cell.queue])
    events = FlowerEvents(app, hostname)
    host.watch(events)
    register_orders(app, lambda name, text: host.put(name, OrderMessage(text)))
    ended: list[bool] = []

    @worker_shutting_down.connect(weak=False)
    def leave(**_: object) -> None:
        if not ended:
            ended.append(True)
            host.stop(expected_seconds=EXPECTED_SECONDS, evacuate=config.evacuate)
            events.stop()

    events.start()
    host.start()
    log.info("cell %s serves incarnation %s", config.name, cell.incarnation)
    app.worker_main(worker_arguments(hostname))
    leave()


def _lock_journal(path: Path) -> int | None:
    """Hold the lock that keeps a twin on this host away; None if a twin holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


if __name__ == "__main__":
    sys.exit(main())
