"""The journal: what was synced survives, what is torn is cut off, what is done forgotten."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.contract.messages.orders import GroupSpec, RunAttempt, StopAttempt
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState
from tests.harness.small_disk import mounted
from workers.cell_attempt import CellAttempt
from workers.journal import (
    KNOWN_SECONDS,
    CellJournal,
    FinishedAttempt,
    JournalFile,
    JournalState,
)
from workers.journal_file import RESERVE_BYTES, FileStore

SPEC = GroupSpec(id=1, job_id=1, job_name="j", group="g", replicas=1, command=("noop",))


def run(uid: str) -> RunAttempt:
    return RunAttempt(uid, 1, 1, 0, 1, 100.0)


_stores: list[FileStore] = []


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    yield
    while _stores:
        _stores.pop().close()


def file_at(path: Path) -> JournalFile:
    _stores.append(FileStore(path))
    return JournalFile(_stores[-1])


def opened(path: Path, cell: str = "a") -> tuple[JournalFile, CellJournal]:
    file = file_at(path)
    return file, file.journal(cell)


def record(journal: CellJournal, uid: str) -> CellAttempt:
    found = journal.find(uid)
    assert found is not None
    return found


def filled(path: Path) -> JournalState:
    """A journal with one attempt in each stage of life."""
    file, journal = opened(path)
    journal.begin("one")
    for uid in ("taken", "started", "stopped", "ended", "done", "crashed", "reached"):
        journal.take(run(uid), SPEC)
    journal.start(record(journal, "started"), 5.0, "container")
    journal.stop(StopAttempt("stopped", "why"))
    journal.end(AttemptReport("ended", 0, TaskState.SUCCEEDED, exit_code=0, gone=True))
    journal.finish("done", 200.0)
    journal.crash(record(journal, "reached"))
    journal.reach(record(journal, "reached"), 2)
    journal.crash(record(journal, "crashed"))
    journal.move(record(journal, "crashed"))
    journal.acknowledge(42)
    file.sync()
    return journal.memory


def test_synced_entries_survive_reopening(tmp_path: Path) -> None:
    before = filled(tmp_path / "journal")
    _, journal = opened(tmp_path / "journal")
    assert journal.memory == before
    assert journal.memory.written
    assert journal.memory.acked == 42


def test_unsynced_entries_are_lost_on_reopening(tmp_path: Path) -> None:
    _, journal = opened(tmp_path / "journal")
    journal.begin("one")
    _, again = opened(tmp_path / "journal")
    assert again.memory == JournalState()


def test_journal_truncated_at_any_byte_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    filled(path)
    whole = path.read_bytes().rstrip(b"\0")
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        file, journal = opened(path)
        journal.take(run("later"), SPEC)
        file.sync()
        assert "later" in opened(path)[1].memory.attempts


def test_damaged_line_and_all_later_lines_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    filled(path)
    lines = path.read_bytes().rstrip(b"\0").splitlines(keepends=True)
    lines[4] = lines[4].replace(b"take", b"tAke")
    path.write_bytes(b"".join(lines))
    _, journal = opened(path)
    assert set(journal.memory.attempts) == {"taken"}
    assert _stores[-1].read() == b"".join(lines[:4])


def test_compaction_preserves_the_journal_state(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    before = filled(path)
    file, _ = opened(path)
    file.journal("a")
    file.compact()
    assert opened(path)[1].memory == before


def test_the_file_is_compacted_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.journal.COMPACT_BYTES", 20_000)
    file, journal = opened(tmp_path / "journal")
    journal.begin("one")
    for number in range(2_000):
        journal.take(run(str(number)), SPEC)
        journal.finish(str(number), 1.0)
        journal.forget(KNOWN_SECONDS + 2.0)
        file.sync()
    assert _stores[-1].size() < 40_000


def test_finished_uid_is_forgotten_after_the_retention_period(tmp_path: Path) -> None:
    _, journal = opened(tmp_path / "journal")
    journal.finish("u", 200.0)
    journal.forget(KNOWN_SECONDS + 199.0)
    assert "u" in journal.memory.done
    journal.forget(KNOWN_SECONDS + 201.0)
    assert "u" not in journal.memory.done


def test_never_created_flag_survives_compaction(tmp_path: Path) -> None:
    file, journal = opened(tmp_path / "journal")
    journal.finish("never", 200.0, never_created=True)
    journal.finish("was", 300.0)
    file.sync()
    expected = {
        "never": FinishedAttempt(KNOWN_SECONDS + 200.0, True),
        "was": FinishedAttempt(KNOWN_SECONDS + 300.0),
    }
    assert opened(tmp_path / "journal")[1].memory.done.recent == expected
    file.compact()
    assert opened(tmp_path / "journal")[1].memory.done.recent == expected


def test_new_incarnation_keeps_only_the_counters(tmp_path: Path) -> None:
    filled(tmp_path / "journal")
    file, journal = opened(tmp_path / "journal")
    journal.begin("two")
    file.sync()
    memory = opened(tmp_path / "journal")[1].memory
    counts = {"written": journal.memory.written, "claim": journal.memory.claim, "starts": 1}
    assert memory == JournalState(incarnation="two", **counts)


def test_cells_of_one_process_share_a_journal_file_but_no_state(tmp_path: Path) -> None:
    file = file_at(tmp_path / "journal")
    for cell in ("a", "b"):
        file.journal(cell).begin(cell * 3)
    file.journal("a").take(run("u"), SPEC)
    file.sync()
    again = file_at(tmp_path / "journal")
    assert set(again.journal("a").memory.attempts) == {"u"}
    assert not again.journal("b").memory.attempts
    again.compact()
    third = file_at(tmp_path / "journal")
    assert third.journal("b").memory.incarnation == "bbb"


def test_unreferenced_spec_is_dropped_and_written_again_on_next_use(
    tmp_path: Path,
) -> None:
    file, journal = opened(tmp_path / "journal")
    journal.begin("one")
    journal.take(run("first"), SPEC)
    journal.forget(0.0)
    assert journal.memory.specs == {1: SPEC}
    journal.finish("first", 200.0)
    journal.forget(0.0)
    assert journal.memory.specs == {}
    journal.take(run("second"), SPEC)
    file.sync()
    file.compact()
    _, again = opened(tmp_path / "journal")
    assert again.memory.specs == {1: SPEC}


def test_entries_wait_on_a_full_disk_and_are_written_once_space_is_freed(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        path = disk.folder / "journal"
        store = FileStore(path, reserve_bytes=64 << 10, min_free_bytes=256 << 10)
        _stores.append(store)
        file = JournalFile(store)
        journal = file.journal("a")
        journal.begin("one")
        assert file.sync()
        assert not file.lacks_room()
        disk.fill()
        assert file.lacks_room()
        written = 0
        while file.sync():
            journal.take(run(f"{written}" * 100), SPEC)
            written += 1
        # Half of what was kept ahead was there for the ends of what was begun.
        assert store.size() > 32 << 10
        assert file.is_stuck
        before = journal.memory
        disk.clear()
        assert file.sync()
        assert not file.lacks_room()
        again = JournalFile(FileStore(path, reserve_bytes=0)).journal("a")
        assert len(again.memory.attempts) == written
        assert again.memory == before
        store.close()
        _stores.remove(store)


def test_compaction_failing_on_a_full_disk_keeps_the_journal_intact(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 16) as disk:
        path = disk.folder / "journal"
        before = filled(path)
        store = FileStore(path)
        _stores.append(store)
        file = JournalFile(store)
        journal = file.journal("a")
        disk.fill()
        with pytest.raises(OSError, match="No space"):
            file.compact()
        journal.acknowledge(43)
        assert file.sync()
        assert not path.with_suffix(".new").exists()
        before.acked, before.written = 43, before.written + 1
        assert opened(path)[1].memory == before
        for one in _stores:
            one.close()
        _stores.clear()


def test_torn_end_is_truncated_on_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 16) as disk:
        path = disk.folder / "journal"
        before = filled(path)
        _stores.pop().close()
        path.write_bytes(path.read_bytes().rstrip(b"\0") + b"0badcafe [torn")
        disk.fill()
        store = FileStore(path)
        assert JournalFile(store).journal("a").memory == before
        assert store.read().endswith(b"]\n")
        store.close()


def test_preallocated_space_is_not_read_as_content(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    before = filled(path)
    assert path.stat().st_size >= RESERVE_BYTES
    assert b"\0" not in _stores[-1].read()
    assert opened(path)[1].memory == before


def test_an_order_without_its_spec_counts_as_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    filled(path)
    lines = path.read_bytes().rstrip(b"\0").splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if b'"spec"' not in line))
    _, journal = opened(path)
    assert journal.memory.attempts == {}
    assert all(uid in journal.memory.done for uid in ("taken", "started", "stopped"))
