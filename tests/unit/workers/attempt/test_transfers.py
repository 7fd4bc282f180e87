"""What a cell fetches and keeps is counted once, and checked while it goes on."""

import io
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.contract.artifacts import PIECE_BYTES
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import DISK, INPUTS, OUTPUTS, STOPPED, AttemptFailed
from workers.attempt.runtime import EngineAway
from workers.attempt.steps.outputs import save
from workers.attempt.transfer import transfers
from workers.attempt.transfer.tars import rebase
from workers.attempt.transfer.transfers import DiskAllowance, OutputTransfer, fetch
from workers.drivers.paths import save_below

Save = Callable[[Any, str, Path, Callable[[int], None]], bool]


def made_attempt(folder: Path, **parts: Any) -> AttemptRun:
    """What the code under test uses of one; `parts`: its engine, storage and web."""
    context = SimpleNamespace(closed=threading.Event(), back_off=(0.0,), **parts)
    engine = SimpleNamespace(save=parts.get("save"), view=lambda uid: None)
    return cast(
        "AttemptRun",
        SimpleNamespace(
            note_try=lambda text: None,
            uid="uid",
            launch=SimpleNamespace(spec=SimpleNamespace(input_networks=())),
            workspace=folder,
            engine=engine,
            context=context,
            is_broken_off=False,
            check=lambda: None,
        ),
    )


# ----------------------------------------------------------------------------- room


def test_failed_try_does_not_consume_the_disk_allowance(tmp_path: Path) -> None:
    tries: list[str] = []

    def save_at_last(launch: Any, path: str, tar: Path, take: Callable[[int], None]) -> bool:
        tries.append(path)
        take(60)
        if len(tries) < 5:
            raise EngineAway("gone")
        return True

    room = DiskAllowance("outputs", tmp_path, 100, OUTPUTS)
    keeping = OutputTransfer(made_attempt(tmp_path, save=save_at_last))
    save(keeping, "/out", tmp_path / "tar", room, "output out")
    assert (len(tries), room.taken) == (5, 60)


@pytest.mark.parametrize(
    ("total_mib", "free_mib", "fits"),
    [(100_000, 74, True), (100_000, 73, False), (100, 20, True), (100, 19, False)],
)
def test_transfers_leave_space_on_the_disk_of_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total_mib: int, free_mib: int, fits: bool
) -> None:
    """64 MiB, or a tenth of a small disk: the cell's journal is on it, too."""
    disk = SimpleNamespace(total=total_mib * 2**20, free=free_mib * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: disk)
    room = DiskAllowance("inputs", tmp_path, 1000 * 2**20, INPUTS)
    if fits:
        room.take(10 * 2**20)
    else:
        with pytest.raises(AttemptFailed) as failed:
            room.take(10 * 2**20)
        assert (failed.value.kind, failed.value.reason) == (FailureKind.SYSTEM, DISK)


def test_fetch_failed_on_a_full_disk_does_not_consume_the_allowance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = [True, True, True, False]
    monkeypatch.setattr(transfers, "has_room", lambda folder, least: not is_full.pop(0))

    def read(url: str, *, named: bool, pool_networks: tuple[str, ...]) -> Iterator[bytes]:
        yield b"x" * 45

    attempt = made_attempt(tmp_path, storage=SimpleNamespace(read=read))
    room = DiskAllowance("inputs", tmp_path, 100, INPUTS)
    for _ in range(3):
        with pytest.raises(AttemptFailed) as caught:
            fetch(attempt, "input", "s3://x", tmp_path / "file", room, named=True, sha256="")
        assert (caught.value.kind, caught.value.reason) == (FailureKind.SYSTEM, DISK)
    fetch(attempt, "input", "s3://x", tmp_path / "file", room, named=True, sha256="")
    assert room.taken == 45


# ----------------------------------------------------------------------------- breaking off


class Broken(OutputTransfer):
    """A transfer that is cancelled at its `most`-th check."""

    def __init__(self, attempt: AttemptRun, most: int) -> None:
        super().__init__(attempt)
        self.checks, self._most = 0, most

    def check(self) -> None:
        self.checks += 1
        if self.checks >= self._most:
            raise AttemptFailed(None, STOPPED, "stopped", 0)


@pytest.mark.parametrize("way", ["folder", "archive"])
def test_cancelled_copy_of_a_large_file_stops_early(tmp_path: Path, way: str) -> None:
    size, archive = 64 * 2**20, tmp_path / "archive"
    with (tmp_path / "large").open("wb") as file:
        file.truncate(size)
    with tarfile.open(archive, "w") as tar:
        tar.add(tmp_path / "large", arcname="large")

    def saved(launch: Any, path: str, tar: Path, take: Callable[[int], None]) -> bool:
        if way == "folder":
            return save_below(tmp_path, path, tar, take)
        with archive.open("rb") as stream:
            rebase(stream, tar, take)
        return True

    keeping = Broken(made_attempt(tmp_path, save=saved), 10)
    room = DiskAllowance("outputs", tmp_path, 2 * size, OUTPUTS)
    with pytest.raises(AttemptFailed) as caught:
        save(keeping, "/large", tmp_path / "tar", room, "output large")
    assert (caught.value.reason, keeping.checks, room.taken) == (STOPPED, 10, 0)
    assert (tmp_path / "tar").stat().st_size < size / 2


def test_cancelled_upload_of_a_large_file_stops_early(tmp_path: Path) -> None:
    read: list[int] = []

    class Large(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            read.append(1)
            return super().read(size)

    keeping = Broken(made_attempt(tmp_path), 3)
    with pytest.raises(AttemptFailed):
        keeping.put("large", lambda: Large(bytes(8 * PIECE_BYTES)))
    assert len(read) == 3
