"""What is left over on the engine is removed while the cell runs; what is not its own never is."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import GroupSpec, Orders, RegistrationResult, RunAttempt
from tests.conformance.kit import IMAGE, DockerKit, until
from tests.harness.cell_bench import sealed_for
from workers.agent.cell import Cell
from workers.agent.inputs import OrderMessage, ScanResult
from workers.agent.reaper import Reaper
from workers.attempt.runtime import EngineAway, container_name
from workers.drivers.registry import make_driver
from workers.journal import JournalFile
from workers.journal_file import FileStore
from workers.service.host import read_moment

pytestmark = pytest.mark.engine

SPEC = GroupSpec(
    1, 1, "job", "main", 1, image=IMAGE, command=("sleep", "600"), resources={"memory_mib": 32}
)
ONE_OF_OURS, ANOTHER = "0190-left-over", "0190-another"


class Bench:
    """A real cell on a real engine, driven by the test, and its reaper."""

    def __init__(self, kit: DockerKit) -> None:
        self.config = kit.config()
        self.store = FileStore(kit.home / "journal")
        self.journals = JournalFile(self.store)
        self.inputs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.driver = make_driver(self.config, self.inputs.put)
        self.cell = Cell(self.config, self.journals.journal(self.config.name), self.driver)
        self.reaper = Reaper(self.driver, kit.home / "work", self.inputs.put, scan_seconds=0.01)
        self.cell.start(read_moment())
        self.inputs.put(self.reaper.scan())  # before it, nothing is registered
        self.round()
        self.deliver(
            RegistrationResult(
                "accepted", "", read_moment().wall, 30.0, 5.0, self.cell._register_seq
            )
        )

    def deliver(self, order: Any) -> None:
        self.inputs.put(OrderMessage(sealed_for(self.cell, order.body())))
        self.round()

    def round(self) -> None:
        now = read_moment()
        while not self.inputs.empty():
            self.cell.note(self.inputs.get(), now)
        self.cell.tick(now)
        self.journals.sync()
        self.cell.act()

    def close(self) -> None:
        self.reaper.close()
        self.driver.close()
        self.store.close()


@pytest.fixture
def bench(docker_kit: DockerKit) -> Iterator[Bench]:
    bench = Bench(docker_kit)
    yield bench
    bench.close()


def lay(kit: DockerKit, name: str, **labels: str) -> str:
    """Start a container that no cell knows."""
    made = kit.outside.create_container(
        IMAGE, ["sleep", "600"], name=name, labels=labels, detach=True
    )
    kit.outside.start(made["Id"])
    return str(made["Id"])


def names(kit: DockerKit) -> set[str]:
    return {row["Names"][0].lstrip("/") for row in kit.outside.containers(all=True)}


def test_unknown_attempts_are_removed_and_foreign_containers_kept(
    docker_kit: DockerKit, bench: Bench
) -> None:
    kit, cell = docker_kit, bench.config.name
    known = RunAttempt("0190-known", 1, 1, 0, 1, read_moment().wall + 60)
    bench.deliver(Orders((SPEC,), (known,)))
    bench.reaper.start()
    own = {"cellrun.installation": kit.installation, "cellrun.cell": cell}
    suffix = kit.installation.rpartition("-")[2]
    foreign = {
        f"other-cell-{suffix}": {**own, "cellrun.cell": "other", "cellrun.attempt": ANOTHER},
        f"other-house-{suffix}": {
            **own, "cellrun.installation": f"x{suffix}", "cellrun.attempt": ANOTHER
        },
        f"nobodys-{suffix}": {},
    }  # fmt: skip
    try:
        for name, labels in foreign.items():
            lay(kit, name, **labels)
        left = container_name(ONE_OF_OURS)
        lay(kit, left, **own, **{"cellrun.attempt": ONE_OF_OURS})
        workspace = kit.home / "work" / "0190-folder"
        workspace.mkdir(parents=True)

        def is_tidy() -> bool:
            bench.round()
            return left not in names(kit) and not workspace.exists()

        until(is_tidy)
        assert set(foreign) <= names(kit)
        until(lambda: container_name(known.uid) in names(kit))
        # Orders for it may still be on their way: it was started once.
        late = RunAttempt(ONE_OF_OURS, 1, 2, 0, 1, read_moment().wall + 60)
        bench.deliver(Orders((SPEC,), (late,)))
        assert bench.cell.journal.find(ONE_OF_OURS) is None
    finally:
        for name in foreign:
            kit.outside.remove_container(name, force=True)


def test_attempts_ordered_during_a_scan_are_not_removed(
    docker_kit: DockerKit, bench: Bench
) -> None:
    bench.reaper.start()
    until_wall = read_moment().wall + 60
    runs = tuple(RunAttempt(f"0190-{n}", 1, n, n, 1, until_wall) for n in range(20))
    for run in runs:
        bench.deliver(Orders((SPEC,), (run,)))

    def all_run() -> bool:
        bench.round()
        return all(
            (book := bench.cell.journal.find(run.uid)) is not None and book.started_at
            for run in runs
        )

    until(all_run)
    assert {container_name(run.uid) for run in runs} <= names(docker_kit)


def test_scan_is_repeated_after_an_unreachable_engine(tmp_path: Path) -> None:
    class Away:
        name = "away"
        answers = iter([False, True])

        def find(self) -> list[Any]:
            if not next(self.answers):
                raise EngineAway("no answer")
            return []

    results: queue.SimpleQueue[ScanResult] = queue.SimpleQueue()
    reaper = Reaper(Away(), tmp_path, results.put, scan_seconds=0.01)  # type: ignore[arg-type]
    reaper.start()
    assert results.get(timeout=30) == ScanResult((), ())
    reaper.close()


def test_scan_starts_at_once_and_waits_in_a_separate_thread(tmp_path: Path) -> None:
    class Hanging:
        name = "hanging"
        answers = threading.Event()

        def find(self) -> list[Any]:
            self.answers.wait()
            return []

    results: queue.SimpleQueue[ScanResult] = queue.SimpleQueue()
    engine = Hanging()
    reaper = Reaper(engine, tmp_path, results.put, scan_seconds=3600)  # type: ignore[arg-type]
    reaper.start()
    assert results.empty()
    engine.answers.set()
    assert results.get(timeout=30) == ScanResult((), ())
    reaper.close()
