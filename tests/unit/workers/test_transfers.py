"""What a cell fetches and keeps is counted once, and looked at while it goes on."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.contract.states import FailureKind
from workers.attempt import transfers
from workers.attempt.attempt import Attempt
from workers.attempt.engine import EngineAway
from workers.attempt.outcome import DISK, INPUTS, OUTPUTS, AttemptFailed
from workers.attempt.steps.outputs import save
from workers.attempt.transfers import Keeping, Room, fetch

Save = Callable[[Any, str, Path, Callable[[int], None]], bool]


def made_attempt(folder: Path, **parts: Any) -> Attempt:
    """What the code under test asks of one; `parts`: of its engine, storage and web."""
    around = SimpleNamespace(closed=threading.Event(), back_off=(0.0,), **parts)
    engine = SimpleNamespace(save=parts.get("save"), view=lambda uid: None)
    return cast(
        "Attempt",
        SimpleNamespace(
            uid="uid",
            launch=None,
            workspace=folder,
            engine=engine,
            around=around,
            is_broken_off=False,
            check=lambda: None,
        ),
    )


# ----------------------------------------------------------------------------- room


def test_a_try_that_failed_takes_no_room_from_the_next_one(tmp_path: Path) -> None:
    tries: list[str] = []

    def save_at_last(launch: Any, path: str, tar: Path, take: Callable[[int], None]) -> bool:
        tries.append(path)
        take(60)
        if len(tries) < 5:
            raise EngineAway("gone")
        return True

    room = Room("outputs", tmp_path, 100, OUTPUTS)
    keeping = Keeping(made_attempt(tmp_path, save=save_at_last))
    save(keeping, "/out", tmp_path / "tar", room, "output out")
    assert (len(tries), room.taken) == (5, 60)


def test_what_had_no_room_on_the_disk_is_not_counted_when_it_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = [True, True, True, False]
    monkeypatch.setattr(transfers, "has_room", lambda folder, least: not is_full.pop(0))

    def read(url: str, *, named: bool) -> Iterator[bytes]:
        yield b"x" * 45

    attempt = made_attempt(tmp_path, storage=SimpleNamespace(read=read))
    room = Room("inputs", tmp_path, 100, INPUTS)
    for _ in range(3):
        with pytest.raises(AttemptFailed) as caught:
            fetch(attempt, "input", "s3://x", tmp_path / "file", room, named=True, sha256="")
        assert (caught.value.kind, caught.value.reason) == (FailureKind.SYSTEM, DISK)
    fetch(attempt, "input", "s3://x", tmp_path / "file", room, named=True, sha256="")
    assert room.taken == 45
