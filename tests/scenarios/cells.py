"""Cells that run programs: the code of a cell with a real driver, beside the control plane.

The scenario's thread drives them, as the loop of their process does; programs run by themselves.
"""

import base64
import gc
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import docker

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.contract.wire import keys
from controlplane.models import Attempt, Job, Task
from controlplane.queries.views.tasks import get_task
from controlplane.storage.folder import read_log
from tests.conformance.kit import IMAGE, SECONDS, until
from tests.scenarios.stage import SMALL, Stage
from workers.agent.cell import Cell
from workers.agent.inputs import CellInput, OrderMessage
from workers.agent.reaper import Reaper
from workers.config import CellConfig
from workers.drivers.base import Driver
from workers.drivers.process.engine import ProcessEngine
from workers.drivers.registry import make_driver, make_pipeline
from workers.drivers.runner.driver import InstalledRunners
from workers.journal import JournalFile
from workers.journal_file import FileStore
from workers.runners.interface import Runner
from workers.service.host import read_moment

BACK_OFF = (0.05, 0.1)
CONVERGE_EVERY = 0.5
SECONDS_TO_END = 20.0
CAPACITY = {"cpu_millis": 4000, "memory_mib": 4096, "disk_mib": 10_000}
KINDS = {"docker": "container", "process": "process"}


class RealCell:
    """Runs programs on this machine. `runners`: those of the scenario's own, by task type."""

    def __init__(
        self, live: "LiveStage", config: CellConfig, runners: Mapping[str, Runner] | None
    ) -> None:
        self.live, self.config, self._runners = live, config, runners
        self.is_cut_off = False
        # The texts of all orders that arrived.
        self.orders: list[str] = []
        self.begin()

    @property
    def name(self) -> str:
        """Return its name."""
        return self.config.name

    @property
    def kind(self) -> str:
        """Return the task type that its driver runs."""
        return KINDS[self.config.driver]

    @property
    def root(self) -> str:
        """Return what precedes the paths of a job in a script that runs here."""
        return "" if self.config.driver == "docker" else "$CELLRUN_ROOT"

    def signal_file(self, name: str) -> str:
        """Return the path, for scripts that run here, of a file that `touch` makes."""
        return f"/tmp/{name}" if self.config.driver == "docker" else f"{self.live.home}/{name}"

    def touch(self, attempt: Attempt, name: str) -> None:
        """Make the signal file where the attempt finds it."""
        if self.config.driver == "process":
            Path(self.signal_file(name)).touch()
            return
        with closing(docker.APIClient(version="auto")) as engine:
            command = ["touch", self.signal_file(name)]
            made = engine.exec_create(f"cellrun-{attempt.uid}", command, user="root")
            engine.exec_start(made["Id"])

    def written(self, attempt: Attempt) -> str:
        """Return what the program wrote, before the cell removes its files."""
        path = self.config.home / "logs" / str(attempt.uid) / "stdout"
        return path.read_text() if path.exists() else ""

    def begin(self) -> None:
        """Begin a process of the cell on what the one before it left."""
        self._news: SimpleQueue[CellInput] = SimpleQueue()
        self._journals = JournalFile(FileStore(self.config.home / "journal", fsync=False))
        self.driver = self._make_driver()
        self.cell = Cell(self.config, self._journals.journal(self.name), self.driver)
        self._reaper = Reaper(self.driver, self.config.home / "work", self._news.put)
        seen = self._reaper.scan()
        assert seen is not None
        self._news.put(seen)
        self.cell.start(read_moment())
        self._journals.sync()

    def _make_driver(self) -> Driver:
        if self._runners is None:
            return make_driver(self.config, self._news.put, back_off=BACK_OFF)
        engine = ProcessEngine(home=self.config.home, max_log_bytes=self.config.max_log_bytes)
        offered = InstalledRunners(self._runners)
        return make_pipeline(engine, self.config, self._news.put, BACK_OFF, offered)

    def kill(self) -> None:
        """Kill its process; its programs run on."""
        self.driver.close()

    def step(self) -> None:
        """Do a round of its loop."""
        now = read_moment()
        for text in self._take_orders():
            self.orders.append(text)
            self.cell.note(OrderMessage(text), now)
        try:
            self.cell.note(self._news.get(timeout=0.01), now)
            while True:
                self.cell.note(self._news.get_nowait(), now)
        except Empty:
            pass
        self.cell.tick(now)
        self._journals.sync()
        self.cell.act()
        self.cell.ended.clear()
        sent = self.cell.take_outgoing()
        if sent and not self.is_cut_off:
            self.live.inbox.apply([_body_of(message) for _, message in sent])

    def _take_orders(self) -> list[str]:
        sent = self.live.wire.sent
        mine = [item for item in list(sent) if item[0] == self.cell.queue]
        for item in mine:
            sent.remove(item)
        return [] if self.is_cut_off else [_body_of(message)[0][0] for _, message in mine]

    def close(self) -> None:
        """End and remove all that it runs, and let go."""
        for book in self.cell.journal.open_attempts():
            self.driver.stop(book.uid, grace_seconds=0.0, force=True)
        end = time.monotonic() + SECONDS_TO_END
        while not self.cell.is_empty and time.monotonic() < end:
            self.step()
        for found in list(self.driver.find()):
            self.driver.remove(found.uid)
        until(lambda: not list(self.driver.find()))
        self.driver.close()


def _body_of(message: str) -> Any:
    """Return the body of a message as a consumer gets it."""
    return json.loads(base64.b64decode(json.loads(message)["body"]))


@dataclass
class LiveStage(Stage):
    """The control plane in the machine's own time, with its web at `url`."""

    url: str = ""
    home: Path = Path("/nonexistent")
    cells_here: dict[str, RealCell] = field(default_factory=dict)
    converged_at: float = 0.0
    threads: set[threading.Thread] = field(default_factory=lambda: set(threading.enumerate()))

    def now(self) -> datetime:
        """Return the present instant."""
        return clock.now()

    def open_cell(
        self,
        driver: str,
        name: str = "cell-1",
        *,
        runners: Mapping[str, Runner] | None = None,
        **settings: Any,
    ) -> RealCell:
        """Return a cell that is registered."""
        key = keys.decode_key(enroll_cell(name=name, pool="default", now=self.now()))
        defaults: dict[str, Any] = {
            "broker_url": "",
            "control_url": self.url,
            "installation": f"scenarios-{uuid.uuid4().hex[:8]}",
            "capacity": CAPACITY,
            "driver": driver,
            "runners": tuple(runners or ()),
        }
        given = {**defaults, **settings}
        config = CellConfig(name=name, key=key, home=self.home / name, **given)
        cell = self.cells_here[name] = RealCell(self, config, runners)
        self.until(lambda: cell.cell.is_registered)
        return cell

    def run(self, cell: RealCell, script: str, **body: Any) -> Job:
        """Submit a job whose tasks run the script."""
        return self.submit(**{"resources": SMALL["resources"], **script_of(cell, script), **body})

    def until(self, condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """Let all go on until `condition` holds; return its value. Back-offs are cut short."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, f"it did not happen in time: {self.describe()}"
            Task.objects.filter(state=1, not_before__gt=self.now()).update(not_before=None)
            self.place()
            for cell in self.cells_here.values():
                cell.step()
            if time.monotonic() > self.converged_at + CONVERGE_EVERY:
                self.converge()
                self.converged_at = time.monotonic()
        return found

    def describe(self) -> list[tuple[Any, ...]]:
        """Return each attempt as it is, for the message of a failure."""
        columns = ("task_id", "number", "state", "phase", "reason", "message", "released_at")
        return list(Attempt.objects.order_by("task_id", "number").values_list(*columns))

    def until_state(self, job: Job, state: str) -> Job:
        """Return the job once it is in that state."""
        self.until(lambda: self.state(job) == state)
        return self.job(job)

    def until_runs(self, job: Job) -> Attempt:
        """Return the attempt of its one task once its program runs."""
        self.until(lambda: self.states(job) == ["RUNNING"])
        return self.last(job)

    def until_settled(self, job: Job) -> Job:
        """Return the job once it has ended and its cells have confirmed that."""
        self.until(lambda: self.job(job).settled_at)
        return self.job(job)

    def document(self, job: Job) -> dict[str, Any]:
        """Return the job's one task as the API shows it."""
        return dict(get_task(self.task(job).pk, now=self.now()))

    def result(self, job: Job) -> Any:
        """Return the result of its one task."""
        return self.document(job)["result"]

    def log(self, attempt: Attempt, stream: str = "stdout") -> str:
        """Return what web has so far of what the program wrote."""
        piece = read_log(attempt.uid, stream, offset=0, limit=1 << 20)
        return piece.content.decode()

    def close(self) -> None:
        """End all that runs, and wait until no thread of it holds a connection."""
        for cell in self.cells_here.values():
            cell.close()
        gc.collect()
        end = time.monotonic() + SECONDS_TO_END
        for thread in set(threading.enumerate()) - self.threads:
            thread.join(timeout=max(end - time.monotonic(), 0.0))
        for cell in self.cells_here.values():
            cell.driver.close()  # what its last threads have opened meanwhile


def script_of(cell: RealCell, script: str) -> dict[str, Any]:
    """Return the part of a job, or of a group, that runs the script there."""
    image = IMAGE if cell.kind == "container" else None
    return {"command": ["sh", "-c", script], "task_type": cell.kind, "image": image}
