"""No attempt that may still run is reported as ended, and its end is found later."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import structlog

from workers.attempt.attempt import AttemptRun
from workers.attempt.disk import bytes_below
from workers.attempt.runtime import ContainerStatus, ContainerView, EngineAway
from workers.attempt.steps.clean import delete_folder, ensure_ended


def test_removal_is_retried_until_the_engine_confirms_it() -> None:
    answers: list[Exception | None] = [EngineAway("gone"), LookupError("of no known kind"), None]
    rests: list[float] = []

    def remove(uid: str) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    engine = SimpleNamespace(
        remove=remove, view=lambda uid: ContainerView(ContainerStatus.RUNNING, "id")
    )
    attempt = SimpleNamespace(
        may_exist=True,
        uid="uid",
        engine=engine,
        rest=rests.append,
        log=structlog.get_logger(),
    )
    ensure_ended(cast("AttemptRun", attempt))
    assert (answers, len(rests)) == ([], 2)


def nest(folder: Path, name: str, depth: int) -> None:
    """Make nested folders with a file of a byte in the last one, as a task does, level by level."""
    found = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=found)
        inner = os.open(name, os.O_RDONLY, dir_fd=found)
        os.close(found)
        found = inner
    with open(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=found), "wb") as file:
        file.write(b"x")
    os.close(found)


def test_folder_of_a_task_is_deleted_whatever_it_nested(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "work"
    outside.mkdir()
    (outside / "kept").touch()
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "file").touch()
    (folder / "empty" / "inner").mkdir(parents=True)
    (folder / "empty" / "link").symlink_to(outside)
    os.mkfifo(folder / "fifo")
    # More levels than Python has frames, and a path of more than PATH_MAX.
    nest(folder, "d", 3000)
    nest(folder, "e" * 200, 60)
    delete_folder(folder)
    assert not folder.exists()
    assert (outside / "kept").exists()
    delete_folder(folder)


def test_deeply_nested_files_count_as_disk_use(tmp_path: Path) -> None:
    nest(tmp_path, "d", 1500)
    try:
        assert bytes_below(tmp_path) == 1
    finally:  # pytest cannot delete it
        delete_folder(tmp_path)


def test_files_beyond_the_longest_path_are_reported_as_unreadable(tmp_path: Path) -> None:
    errors: list[OSError] = []
    nest(tmp_path, "e" * 200, 60)
    try:
        assert bytes_below(tmp_path, on_error=errors.append) == 0
        assert errors
    finally:
        delete_folder(tmp_path)
