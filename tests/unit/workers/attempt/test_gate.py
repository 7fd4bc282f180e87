"""Work beyond a gate's limit waits without a thread, and folders go without what links name."""

from functools import partial
from pathlib import Path

from workers.attempt.steps.clean import delete_folder
from workers.attempt.threads import ThreadGate


def test_leaving_the_gate_admits_the_next_waiter() -> None:
    gate, began = ThreadGate(2), list[str]()
    for name in "abcd":
        gate.enter(name, partial(began.append, name))
    assert began == ["a", "b"]
    gate.leave("b")
    gate.leave("b")
    gate.leave("d")  # it waits, and is not inside
    assert began == ["a", "b", "c"]
    gate.leave("a")
    assert began == ["a", "b", "c", "d"]


def test_deleting_a_folder_keeps_its_symlink_targets(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "folder"
    (kept / "empty").mkdir(parents=True)
    (folder / "root" / "out").mkdir(parents=True)
    (folder / "root" / "link").symlink_to(kept)
    (folder / "file").write_text("x")
    delete_folder(folder)
    assert not folder.exists()
    assert (kept / "empty").is_dir()


def test_a_folder_of_folders_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "folder" / "root" / "out").mkdir(parents=True)
    delete_folder(tmp_path / "folder")
    delete_folder(tmp_path / "never there")
    assert not list(tmp_path.iterdir())
