"""A cell on a bench: real cell, journal and memory driver; the test is clock and control plane."""

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from controlplane.contract.messages.orders import (
    GroupSpec,
    Orders,
    RegistrationResult,
    RunAttempt,
    StopAttempt,
    Sync,
)
from controlplane.contract.messages.reports import AttemptReport, Message, Reports, read_message
from controlplane.contract.states import TaskState
from controlplane.contract.wire import envelope, keys
from workers.agent.cell import Cell
from workers.agent.inputs import ClockReading, OrderMessage, ScanResult
from workers.attempt.events import FoundContainer
from workers.attempt.runtime import EngineAway
from workers.config import CellConfig
from workers.drivers.memory import MemoryDriver, MemoryEngine
from workers.guard.local import LocalGuardLink
from workers.journal import JournalFile
from workers.journal_file import FileStore

KEY = b"k" * 32


def spec(*command: str, **changes: Any) -> GroupSpec:
    """Group 1 of job 1, for the memory driver."""
    facts: dict[str, Any] = {"id": 1, "job_id": 1, "job_name": "j", "group": "g", "replicas": 1}
    return GroupSpec(**{**facts, **changes}, command=command)


def sealed_for(cell: Cell, body: dict[str, Any]) -> str:
    """An order as the control plane seals it for a cell."""
    key = keys.mac_key(cell.config.key, keys.TO_CELL)
    return envelope.seal(key, cell=cell.name, incarnation=cell.incarnation, seq=0, body=body)


class Driver(MemoryDriver):
    """A memory driver whose engine may be away."""

    is_away = False

    def find(self) -> Iterable[FoundContainer]:
        if self.is_away:
            raise EngineAway("no answer")
        return super().find()


class Bench:
    """Time stands still until `wait`. Boot and wall clock show the same."""

    def __init__(self, folder: Path, *, ahead: float = 0.0, **disk: int) -> None:
        """`ahead`: of the control plane's clock is the wall clock here; `disk`: see FileStore."""
        self.folder = folder
        self.disk: dict[str, Any] = disk
        self.ahead = ahead
        self.now = 1000.0
        self.engine = MemoryEngine()
        self.is_engine_away = False
        self.guard = LocalGuardLink(
            self.engine, wall=lambda: self.moment.wall, boot=lambda: self.now, boot_id="this"
        )
        self.sent: list[Message] = []
        self.stores: list[FileStore] = []
        self.boot()

    def boot(self) -> None:
        """A process of the cell starts, on the journal that is there."""
        self.stores.append(FileStore(self.folder / "journal", **self.disk))
        self.journals = JournalFile(self.stores[-1])
        self.events: list[Any] = []
        self.driver = Driver(self.events.append, clock=lambda: self.moment.wall, engine=self.engine)
        self.driver.is_away = self.is_engine_away
        config = CellConfig(
            name="a",
            key=KEY,
            home=self.folder,
            broker_url="redis://nowhere",
            control_url="",
            installation="bench",
            capacity={"cpu_millis": 1000},
            driver="memory",
        )
        journal = self.journals.journal("a")
        self.cell = Cell(config, journal, self.driver, guard=self.guard)
        self.cell.start(self.moment)
        self.round()
        self.scan()

    def scan(self) -> None:
        """As a reaper does, once the engine answers."""
        try:
            found = tuple(item.uid for item in self.driver.find())
        except EngineAway:
            return
        self.cell.note(ScanResult(found, ()), self.moment)
        self.round()

    @property
    def moment(self) -> ClockReading:
        return ClockReading(self.now + self.ahead, self.now)

    def round(self, *texts: str) -> None:
        """One round of the host: orders in, driver's events in, sync, act, messages out."""
        for text in texts:
            self.cell.note(OrderMessage(text), self.moment)
        for _ in range(3):
            self.driver.advance(self.moment.wall)
            events, self.events[:] = list(self.events), []
            for event in events:
                self.cell.note(event, self.moment)
            self.cell.tick(self.moment)
            is_safe = self.journals.sync()
            self.cell.act(flush=is_safe, is_safe=is_safe)
        for _, message in self.cell.take_outgoing():
            self.sent.append(self.read(message))

    def read(self, message: str) -> Message:
        text = json.loads(base64.b64decode(json.loads(message)["body"]))
        opened = envelope.parse(text)
        opened.check(keys.mac_key(KEY, keys.TO_CONTROL))
        self.last_seq = opened.seq
        return read_message(opened.content(keys.mac_key(KEY, keys.SEAL_REPORTS)))

    def wait(self, seconds: float) -> None:
        """Let time pass, in steps of the heartbeat."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 1.0, end)
            self.round()

    def deliver(self, body: dict[str, Any]) -> None:
        """Deliver a message of the control plane."""
        self.round(sealed_for(self.cell, body))

    def accept(self, verdict: str = "accepted") -> None:
        """Answer the Register, once it comes."""
        while not self.cell._register_seq:
            self.wait(1.0)
        self.deliver(
            RegistrationResult(verdict, "", self.now, 30.0, 5.0, self.cell._register_seq).body()
        )

    def run(self, uid: str, *command: str, start_before: float | None = None, **rest: Any) -> None:
        """Order an attempt."""
        order = RunAttempt(uid, 1, 1, 0, 1, start_before or self.now + 60)
        self.deliver(Orders((spec(*command, **rest),), (order,)).body())

    def stop(self, uid: str, *, force: bool = False) -> None:
        """Order a stop."""
        self.deliver(Orders(stops=(StopAttempt(uid, "cancelled", 10.0, force),)).body())

    def sync(self, acked: int, **rest: Any) -> None:
        """Answer the last heartbeat."""
        self.deliver(Sync(self.last_seq, acked, self.now, 30.0, 5.0, **rest).body())

    def reports(self) -> list[AttemptReport]:
        """All reports sent so far."""
        return [r for m in self.sent if isinstance(m, Reports) for r in m.reports]

    def states_of(self, uid: str) -> list[TaskState]:
        """The states reported of an attempt."""
        return [report.state for report in self.reports() if report.uid == uid]

    def close(self) -> None:
        """Let go of the files."""
        for store in self.stores:
            store.close()
