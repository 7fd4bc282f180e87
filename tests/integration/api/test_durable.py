"""What the store has taken survives a power cut: it is synced before the answer, and once."""

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings

from controlplane.storage.folder import announce, artifacts, open_artifact, put_piece
from controlplane.storage.folder import contents as store
from controlplane.storage.interface import AnnouncedFile, ArtifactsTooLarge, WrongOffset
from tests.harness.power_cut import Disk
from tests.harness.store_limits import reserve_nothing


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def root() -> Path:
    path: Path = settings.CELLRUN.artifact_root
    return path


def test_input_is_synced_before_it_is_renamed(disk: Disk) -> None:
    content = uuid4().hex.encode()
    digest = store.put_input(content)
    folder = root() / "inputs" / digest[:2]
    assert disk.renamed == [content]
    assert disk.calls[-2:] == [f"rename to {digest}", f"sync {folder.name}"]
    assert disk.keeps(folder / digest) == content


def test_output_is_synced_before_its_size_is_answered(disk: Disk) -> None:
    """The cell deletes the output whose size it received."""
    uid = uuid4()
    assert store.append_log(uid, "stdout", offset=0, content=b"one") == 3
    path = root() / "logs" / uid.hex[-2:] / str(uid) / "stdout"
    assert disk.keeps(path) == b"one"
    assert store.append_log(uid, "stdout", offset=3, content=b"two") == 6
    assert disk.keeps(path) == b"onetwo"


def test_artifact_is_synced_before_it_is_renamed(disk: Disk) -> None:
    content, uid = b"all of it", uuid4()
    file = AnnouncedFile(uid, f"x/{uid}", "out", len(content), sha256(content).hexdigest())
    assert (
        put_piece(file, offset=0, content=content[:3], most=lambda: 100, reserve=reserve_nothing)
        == 3
    )
    assert disk.renamed == []
    assert put_piece(
        file, offset=3, content=content[3:], most=lambda: 100, reserve=reserve_nothing
    ) == len(content)
    assert disk.renamed == [content]
    assert disk.calls[-2:] == ["rename to out", f"sync {uid}"]
    found = open_artifact(f"x/{uid}", "out")
    assert found is not None
    with found:
        assert found.read() == content


def test_draft_removed_while_waiting_for_its_lock_takes_no_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another web process has begun another version of the file; the cell begins anew."""
    content, uid = b"all of it", uuid4()
    file = AnnouncedFile(uid, f"x/{uid}", "out", len(content), sha256(content).hexdigest())
    assert (
        put_piece(file, offset=0, content=content[:3], most=lambda: 100, reserve=reserve_nothing)
        == 3
    )
    flock = fcntl.flock

    def late(handle: Any, how: int) -> None:
        (root() / file.draft).unlink()
        flock(handle, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", late)
        assert (
            put_piece(
                file, offset=3, content=content[3:], most=lambda: 100, reserve=reserve_nothing
            )
            == 0
        )
    assert (
        put_piece(file, offset=3, content=content[3:], most=lambda: 100, reserve=reserve_nothing)
        == 0
    )
    assert open_artifact(f"x/{uid}", "out") is None
    assert put_piece(
        file, offset=0, content=content, most=lambda: 100, reserve=reserve_nothing
    ) == len(content)


def test_concurrent_chunks_at_one_offset_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two web processes may receive the same chunk: the second checks after the first."""
    uid, writing, checked = uuid4(), threading.Event(), threading.Event()
    fdatasync, fstat = store.os.fdatasync, store.os.fstat

    def linger(file: int) -> None:
        writing.set()
        checked.wait(0.3)  # only without the lock does the other get so far
        fdatasync(file)

    def fstat_and_signal(file: int) -> object:
        if writing.is_set():
            checked.set()
        return fstat(file)

    monkeypatch.setattr(store.os, "fdatasync", linger)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.append_log, uid, "stdout", offset=0, content=b"chunk")
        assert writing.wait(10)
        monkeypatch.setattr(store.os, "fstat", fstat_and_signal)
        second = threads.submit(store.append_log, uid, "stdout", offset=0, content=b"chunk")
        assert not checked.wait(0.1)
        assert first.result() == 5
        with pytest.raises(WrongOffset):
            second.result()
    assert store.read_log(uid, "stdout", offset=0, limit=100).content == b"chunk"


def test_concurrent_pieces_at_one_offset_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two web processes may receive the same piece: the second reads the size after the first."""
    content, uid = b"all of it", uuid4()
    file = AnnouncedFile(uid, f"x/{uid}", "out", len(content), sha256(content).hexdigest())
    announce(file, most=lambda: 100, reserve=reserve_nothing)
    append, appending, overtaken = artifacts._append, threading.Event(), threading.Event()

    def late(*arguments: Any) -> None:
        if appending.is_set():
            overtaken.set()
        else:
            appending.set()
            overtaken.wait(0.3)  # only without the lock does the other get so far
        append(*arguments)

    monkeypatch.setattr(artifacts, "_append", late)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(
            put_piece,
            file,
            offset=0,
            content=content[:3],
            most=lambda: 100,
            reserve=reserve_nothing,
        )
        assert appending.wait(10)
        second = threads.submit(
            put_piece,
            file,
            offset=0,
            content=content[:3],
            most=lambda: 100,
            reserve=reserve_nothing,
        )
        assert [first.result(), second.result()] == [3, 3]
    assert (root() / file.draft).read_bytes() == content[:3]


def test_concurrent_files_do_not_exceed_the_limit_of_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two web processes may receive two files at once: the second counts after the first."""
    uid = uuid4()
    one, two = (AnnouncedFile(uid, f"x/{uid}", name, 60, "0" * 64) for name in ("one", "two"))
    count, counted, overtaken = artifacts._count_others, threading.Event(), threading.Event()

    def late(*arguments: Any) -> tuple[int, int]:
        found = count(*arguments)
        if counted.is_set():
            overtaken.set()
        else:
            counted.set()
            overtaken.wait(0.3)  # only without the lock does the other get so far
        return found

    monkeypatch.setattr(artifacts, "_count_others", late)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(announce, one, most=lambda: 100, reserve=reserve_nothing)
        assert counted.wait(10)
        second = threads.submit(announce, two, most=lambda: 100, reserve=reserve_nothing)
        assert first.result().size == 0
        with pytest.raises(ArtifactsTooLarge):
            second.result()
