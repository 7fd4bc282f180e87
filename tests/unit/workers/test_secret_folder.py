"""Secrets as files: in memory, each attempt's own, and gone with it."""

import os
from pathlib import Path

import pytest

from workers import secret_folder
from workers.secret_folder import SecretFolder, UnsafeSecretFolder, default_folder, is_in_memory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run" / "secrets"


@pytest.fixture
def folder(place: Path) -> SecretFolder:
    return SecretFolder(place, may_be_on_disk=True)


def test_secret_files_lie_in_folders_accessible_to_their_owner_only(
    folder: SecretFolder, place: Path
) -> None:
    files = folder.write("a", [b"one", b"\x00\xff", b""])
    assert [file.read_bytes() for file in files] == [b"one", b"\x00\xff", b""]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o444] * 3
    for let_in in (place, place / "a"):
        assert let_in.stat().st_mode & 0o777 == 0o700
    assert folder.write("a", [b"two", b"", b""]) == files
    assert files[0].read_bytes() == b"two"
    assert sorted(os.listdir(place / "a")) == ["0", "1", "2"]


def test_permissive_folder_mode_is_tightened(folder: SecretFolder, place: Path) -> None:
    place.mkdir(parents=True)
    place.chmod(0o755)
    folder.write("a", [b"one"])
    assert place.stat().st_mode & 0o777 == 0o700


def test_removing_the_last_secrets_removes_the_folder(folder: SecretFolder, place: Path) -> None:
    folder.write("a", [b"one"])
    [kept] = folder.write("b", [b"two"])
    folder.remove("a")
    folder.remove("never was")
    assert os.listdir(place) == ["b"]
    assert kept.read_bytes() == b"two"
    folder.remove("b")
    assert not place.exists()
    assert folder.write("c", [b"three"])[0].exists()


def test_sweep_removes_secrets_of_unknown_attempts(
    folder: SecretFolder, place: Path, tmp_path: Path
) -> None:
    folder.sweep(tmp_path / "work")
    folder.write("known", [b"1"])
    folder.write("stranger", [b"2"])
    (tmp_path / "work" / "known").mkdir(parents=True)
    folder.sweep(tmp_path / "work")
    assert os.listdir(place) == ["known"]
    (tmp_path / "work" / "known").rmdir()
    folder.sweep(tmp_path / "work")
    assert not place.exists()


def test_a_folder_that_is_not_in_memory_is_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(secret_folder, "MOUNTS", mounts)
    line = f"30 1 {os.major(device)}:{os.minor(device)} / / rw shared:1 - %s source rw\n"
    mounts.write_text(line % "ext4")
    with pytest.raises(UnsafeSecretFolder, match="is not in memory"):
        SecretFolder(place).write("a", [b"one"])
    assert not place.exists()
    mounts.write_text("29 1 0:5 / /dev rw - devtmpfs udev rw\n" + line % "tmpfs")
    assert SecretFolder(place).write("a", [b"one"])


def test_default_secrets_location_is_in_memory() -> None:
    assert is_in_memory(secret_folder.MEMORY)
    assert not is_in_memory(Path("/proc"))


def test_folder_of_another_user_and_symlink_are_refused(
    folder: SecretFolder, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    place.parent.mkdir()
    place.symlink_to(tmp_path / "theirs")
    with pytest.raises(UnsafeSecretFolder, match="not a folder of the cell's own user"):
        folder.write("a", [b"one"])
    folder.sweep(tmp_path / "work")
    place.unlink()
    place.mkdir()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(UnsafeSecretFolder, match="not a folder of the cell's own user"):
        folder.write("a", [b"one"])
    assert os.listdir(tmp_path / "theirs") == os.listdir(place) == []


def test_cells_of_one_name_do_not_share_a_folder() -> None:
    folders = {
        default_folder("here", "cell-1", Path("/a")),
        default_folder("here", "cell-1", Path("/b")),
        default_folder("here", "cell-2", Path("/a")),
        default_folder("there", "cell-1", Path("/a")),
    }
    assert len(folders) == 4
    assert {folder.parent for folder in folders} == {secret_folder.MEMORY}
