"""What survives a power cut at any moment: a cell acts and speaks on nothing else."""

import base64
import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from controlplane.contract.messages.orders import Orders, RegistrationResult, RunAttempt
from controlplane.contract.messages.reports import (
    Goodbye,
    Heartbeat,
    Register,
    Reports,
    read_message,
)
from controlplane.contract.wire import envelope, keys
from tests.harness.cell_bench import KEY, sealed_for, spec
from tests.harness.power_cut import Disk
from workers.agent.cell import Cell
from workers.agent.inputs import OrderMessage, ScanResult
from workers.agent.reporting import _COUNTER_BITS
from workers.attempt.events import Launch
from workers.clock import wall_seconds
from workers.config import CellConfig
from workers.drivers.memory import MemoryDriver
from workers.journal import JournalFile
from workers.journal_file import FileStore
from workers.remote_files import Storage
from workers.runners.records import write_whole
from workers.service.host import CellHost

SOON = 10.0
CellMessage = TypeVar("CellMessage", Register, Heartbeat, Reports, Goodbye)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


# ------------------------------------------------------------------ the store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(tmp_path / "journal")
    yield store
    store.close()


def test_appended_lines_are_durable_when_sync_returns(
    store: FileStore, disk: Disk, tmp_path: Path
) -> None:
    store.append(b"one\n")
    assert disk.keeps(tmp_path / "journal") == b""
    store.sync()
    assert disk.keeps(tmp_path / "journal") == b"one\n"


def test_the_journal_is_durable_when_its_sync_returns(disk: Disk, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "journal")
    journals = JournalFile(store)
    journals.journal("a").begin("first")
    assert journals.sync()
    assert b'"incarnation","first"' in disk.keeps(tmp_path / "journal")
    store.close()


def test_failed_sync_is_not_durable_and_its_lines_are_written_again(
    disk: Disk, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "journal")
    journals = JournalFile(store)
    journals.journal("a").begin("first")
    disk.is_failing = True
    assert not journals.sync()
    disk.is_failing = False
    assert journals.sync()
    kept = disk.keeps(tmp_path / "journal")
    assert (kept.count(b"incarnation"), kept) == (1, store.read())
    store.close()


def test_torn_end_is_truncated_durably(store: FileStore, disk: Disk, tmp_path: Path) -> None:
    store.append(b"whole\ntorn")
    store.sync()
    store.cut(len(b"whole\n"))
    assert disk.keeps(tmp_path / "journal") == b"whole\n"


def test_compacted_journal_is_durable_before_it_replaces_the_old_one(
    store: FileStore, disk: Disk, tmp_path: Path
) -> None:
    """Else the name may survive a power cut without the content, and the old one is gone."""
    store.append(b"long\n" * 9)
    store.sync()
    disk.calls.clear()
    store.replace(b"short\n")
    assert disk.renamed == [b"short\n"]
    # And the name, before anything is appended that only the new file has.
    assert disk.calls == ["sync journal.new", "rename to journal", f"sync {tmp_path.name}"]
    store.append(b"next\n")
    store.sync()
    assert disk.keeps(tmp_path / "journal") == b"short\nnext\n" == store.read()


# ------------------------------------------------------------------ other files of a cell


def test_output_file_is_durable_before_it_appears(disk: Disk, tmp_path: Path) -> None:
    storage = Storage(file_roots=[tmp_path])
    for _ in storage.write(f"file://{tmp_path}/out", io.BytesIO(b"all of it")):
        pass
    assert disk.renamed == [b"all of it"] == [disk.keeps(tmp_path / "out")]


def test_runner_record_is_durable_before_it_replaces_the_old_one(
    disk: Disk, tmp_path: Path
) -> None:
    write_whole(tmp_path / "kept.json", {"state": 1})
    assert [json.loads(kept) for kept in disk.renamed] == [{"state": 1}]
    assert disk.calls == ["sync kept.new", "rename to kept.json", f"sync {tmp_path.name}"]


# ------------------------------------------------------------------ the loop of a cell


class Recorder(MemoryDriver):
    """Notes what a power cut would have left when an attempt was started."""

    site: "Site"

    def start(self, launch: Launch) -> None:
        with self.site.is_changed:
            self.site.started[launch.run.uid] = self.site.kept
            self.site.is_changed.notify_all()
        super().start(launch)


class Site:
    """A cell in its real loop; it is also the bus to which the cell pushes."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.disk, self.path = disk, folder / "journal"
        self.started: dict[str, bytes] = {}
        self.pushed: list[tuple[envelope.Envelope, bytes]] = []
        self.is_changed = threading.Condition()
        self.store = FileStore(self.path)
        journals = JournalFile(self.store)
        self.host = CellHost(journals, self)
        driver = Recorder(
            lambda event: self.host.put("a", event), clock=wall_seconds, threaded=True
        )
        driver.site = self
        config = CellConfig(
            name="a",
            key=KEY,
            home=folder,
            broker_url="redis://nowhere",
            control_url="",
            installation="site",
            capacity={"cpu_millis": 1000},
            driver="memory",
        )
        self.cell = Cell(config, journals.journal("a"), driver)
        self.host.add(self.cell)

    @property
    def kept(self) -> bytes:
        """What a power cut would leave of the journal now."""
        return self.disk.keeps(self.path)

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        with self.is_changed:
            for _, message in messages:
                text = base64.b64decode(json.loads(message)["body"])
                self.pushed.append((envelope.parse(json.loads(text)), self.kept))
            self.is_changed.notify_all()

    def messages(self, kind: type[CellMessage]) -> list[tuple[CellMessage, bytes]]:
        """The messages of a kind, each with what was kept when it left."""
        seal_key = keys.mac_key(KEY, keys.SEAL_REPORTS)
        found = [(read_message(item.content(seal_key)), kept) for item, kept in self.pushed]
        return [(message, kept) for message, kept in found if isinstance(message, kind)]

    def ends(self) -> list[bytes]:
        """What was kept when each end of an attempt was reported."""
        return [
            kept
            for messages, kept in self.messages(Reports)
            for item in messages.reports
            if item.gone
        ]

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self.is_changed:
            assert self.is_changed.wait_for(condition, SOON)

    def order(self, body: dict[str, Any]) -> None:
        self.host.put("a", OrderMessage(sealed_for(self.cell, body)))

    def run(self, uid: str, *command: str) -> None:
        """Order an attempt."""
        run = RunAttempt(uid, 1, 1, 0, 1, wall_seconds() + 60)
        self.order(Orders((spec(*command),), (run,)).body())

    def begin(self) -> None:
        """Start the loop; the control plane accepts the cell."""
        self.host.prepare()
        self.host.put("a", ScanResult((), ()))
        self.host.start()
        self.wait_for(lambda: self.messages(Register))
        seq = self.pushed[-1][0].seq
        self.order(RegistrationResult("accepted", "", wall_seconds(), 30.0, 5.0, seq).body())


@pytest.fixture
def site(tmp_path: Path, disk: Disk) -> Iterator[Site]:
    site = Site(tmp_path, disk)
    yield site
    site.store.close()


def test_cell_starts_and_reports_only_durable_state(site: Site) -> None:
    site.begin()
    site.run("u", "sleep", "0.05", "exit", "4")
    site.wait_for(site.ends)
    site.host.stop(expected_seconds=120, evacuate=False)
    assert b'"take",["u"' in site.started["u"]
    assert all(b'"end",' in kept for kept in site.ends())
    (_, kept_at_goodbye) = site.messages(Goodbye)[-1]
    assert b'"left"' in kept_at_goodbye
    # A number that counts entries that are gone after a power cut would be drawn a second time.
    assert any(seq_entries(message.seq) for message, _ in site.pushed)
    for message, kept in site.pushed:
        assert message.incarnation.encode() in kept
        assert seq_entries(message.seq) <= len(kept.splitlines())


def seq_entries(seq: int) -> int:
    """How many entries of the journal a message's number counts."""
    return seq >> _COUNTER_BITS


def test_incarnation_is_durable_before_its_queue_is_consumed(site: Site) -> None:
    site.host.prepare()
    assert b'"incarnation"' in site.kept
    assert site.cell.incarnation.encode() in site.kept


def test_orders_are_not_started_while_the_journal_cannot_be_synced(site: Site) -> None:
    site.begin()
    site.wait_for(lambda: site.messages(Heartbeat))
    site.disk.is_failing = True
    site.run("u", "noop")
    site.run("v", "noop")
    while len(site.disk.failed) < 2:  # two rounds of the loop
        site.disk.has_failed.clear()
        site.host.put("a", OrderMessage(""))
        assert site.disk.has_failed.wait(SOON)
    assert site.started == {}
    site.disk.is_failing = False
    site.wait_for(lambda: len(site.ends()) == 2)
    assert b'"take",["u"' in site.started["u"]
    site.host.stop(expected_seconds=120, evacuate=False)
