"""What is taken out of an attempt lies in it, and is put back as it was."""

import bz2
import errno
import gzip
import io
import lzma
import os
import subprocess
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.states import FailureKind
from workers.attempt.outcome import DISK, OUTPUTS, AttemptFailed
from workers.attempt.runtime import EngineError
from workers.attempt.transfer.tars import check_plain, entries_of, pack, rebase, unpack
from workers.attempt.transfer.transfers import DiskAllowance
from workers.drivers.paths import restore_below, save_below


def free(count: int) -> None:
    """Room for everything."""


def names_in(tar: Path) -> dict[str, str]:
    """The names in a tar, with where links lead."""
    with tarfile.open(tar) as made:
        return {entry.name: entry.linkname for entry in made}


def stream(*entries: tuple[str, bytes | None, str]) -> io.BytesIO:
    """A tar as an engine sends it: name, content (None: a folder), and where a link leads."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content, link in entries:
            entry = tarfile.TarInfo(name)
            if link:
                entry.type = tarfile.LNKTYPE if link.startswith("=") else tarfile.SYMTYPE
                entry.linkname = link.removeprefix("=")
            elif content is None:
                entry.type = tarfile.DIRTYPE
            else:
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content or b""))
    made.seek(0)
    return made


def test_archive_names_become_relative_to_the_requested_path(tmp_path: Path) -> None:
    tar = tmp_path / "tar"
    given = stream(("ckpt/", None, ""), ("ckpt/a", b"a", ""), ("ckpt/d/b", b"", "=ckpt/a"))
    rebase(given, tar, free)
    assert names_in(tar) == {".": "", "a": "", "d/b": "a"}
    rebase(stream(("result", b"x", "")), tar, free)
    assert names_in(tar) == {".": ""}


def test_entries_outside_the_requested_path_are_omitted(tmp_path: Path) -> None:
    tar = tmp_path / "tar"
    given = stream(
        ("ckpt/", None, ""),
        ("ckpt/../x", b"x", ""),
        ("etc/passwd", b"x", ""),
        ("ckpt/linked", b"", "=etc/passwd"),
        ("ckpt/link", b"", "/etc/passwd"),
    )
    rebase(given, tar, free)
    assert names_in(tar) == {".": "", "link": "/etc/passwd"}


def test_memory_does_not_grow_with_the_number_of_entries(tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 20_000):
        given = stream(("out", None, ""), *((f"out/{n}", b"", "") for n in range(count)))
        tracemalloc.start()
        rebase(given, tmp_path / "tar", free)
        assert sum(1 for _ in entries_of(tmp_path / "tar")) == count + 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.5


def test_unreadable_archive_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        rebase(io.BytesIO(b"no tar" * 1000), tmp_path / "tar", free)


def test_full_disk_is_a_system_failure_with_reason_disk(tmp_path: Path) -> None:
    def full(count: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(AttemptFailed) as caught:
        rebase(stream(("a", b"x", "")), tmp_path / "tar", full)
    assert (caught.value.kind, caught.value.reason) == (FailureKind.SYSTEM, DISK)


def test_folder_is_restored_as_saved(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    (root / "ckpt" / "deep").mkdir(parents=True)
    (root / "ckpt" / "deep" / "run").write_bytes(b"x")
    (root / "ckpt" / "deep" / "run").chmod(0o750)
    (root / "ckpt" / "link").symlink_to("deep/run")
    (root / "ckpt" / "twin").hardlink_to(root / "ckpt" / "deep" / "run")
    os.mkfifo(root / "ckpt" / "pipe")
    assert save_below(root, "/ckpt/", tmp_path / "tar", free)
    restore_below(other, "/new/ckpt", tmp_path / "tar")
    restore_below(other, "/new/ckpt", tmp_path / "tar")
    back = other / "new" / "ckpt"
    assert sorted(path.name for path in back.iterdir()) == ["deep", "link", "twin"]
    assert (back / "link").readlink() == Path("deep/run")
    assert (back / "twin").read_bytes() == b"x"
    assert (back / "deep" / "run").stat().st_mode & 0o777 == 0o750


def test_symlink_targets_outside_the_root_are_not_saved(tmp_path: Path) -> None:
    root, tar = tmp_path / "root", tmp_path / "tar"
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside" / "secret")
    for path in ("/folder/secret", "/folder", "/file", "/none"):
        assert not save_below(root, path, tar, free), path
    (root / "ckpt").mkdir()
    (root / "ckpt" / "inner").symlink_to(tmp_path / "outside")
    assert save_below(root, "/ckpt", tar, free)
    assert b"secret" not in tar.read_bytes().replace(str(tmp_path).encode(), b"")


def test_entry_with_a_parent_path_is_not_unpacked(tmp_path: Path) -> None:
    tar = tmp_path / "tar"
    tar.write_bytes(stream(("../evil", b"x", "")).getvalue())
    with pytest.raises(EngineError):
        unpack(tar, tmp_path / "root")
    assert not (tmp_path / "evil").exists()


def test_entries_are_not_unpacked_through_symlinks_leading_outside(tmp_path: Path) -> None:
    tar, outside = tmp_path / "tar", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"old")
    link = ("link", b"", str(outside))
    for name in ("link/file", "link/new"):
        tar.write_bytes(stream(link, (name, b"x", "")).getvalue())
        with pytest.raises(EngineError):
            unpack(tar, tmp_path / "root")
    for linked in ("=link/file", "=../outside/file", "=none"):
        tar.write_bytes(stream(link, ("twin", b"", linked)).getvalue())
        with pytest.raises(EngineError):
            unpack(tar, tmp_path / "root")
    file = ("name", b"", str(outside / "file"))
    tar.write_bytes(stream(file, ("name", b"new", "")).getvalue())
    unpack(tar, tmp_path / "root")
    assert (tmp_path / "root" / "name").read_bytes() == b"new"
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_bytes() == b"old"


def bombs(folder: Path) -> dict[str, bytes]:
    """Archives that are much smaller than what they become."""
    plain = stream((".", None, ""), ("a", bytes(1_000_000), "")).getvalue()
    with open(folder / "sparse", "wb") as sparse:
        sparse.truncate(1_000_000)
    found = {"gz": gzip.compress(plain), "bz2": bz2.compress(plain), "xz": lzma.compress(plain)}
    for kind in ("gnu", "posix"):
        command = ["tar", "--sparse", f"--format={kind}", "-cf", "-", "./sparse"]
        found[kind] = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    # Its first bytes are a name that an engine takes for the magic number of bzip2.
    found["name"] = stream(("BZh9", b"x", "")).getvalue()
    found["none"] = b"."
    return found


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "gnu", "posix", "name", "none"])
def test_archive_that_may_grow_is_refused(tmp_path: Path, kind: str) -> None:
    tar = tmp_path / "tar"
    tar.write_bytes(bombs(tmp_path)[kind])
    with pytest.raises(EngineError, match="archive"):
        check_plain(tar)


def test_archive_of_a_folder_is_plain(tmp_path: Path) -> None:
    root, tar = tmp_path / "root", tmp_path / "tar"
    (root / "é" / ("deep" * 60)).mkdir(parents=True)
    (root / "file").write_bytes(b"x")
    (root / "link").symlink_to("file")
    pack(root, tar, free)
    check_plain(tar)
    with open(tar, "rb") as raw:
        rebase(raw, tmp_path / "again", free)
    check_plain(tmp_path / "again")


def test_unpacking_a_symlink_leading_outside_is_repeatable(tmp_path: Path) -> None:
    tar = tmp_path / "tar"
    tar.write_bytes(stream(("link", b"", "/etc"), ("a", b"a", ""), ("b", b"", "=a")).getvalue())
    for _ in range(3):
        unpack(tar, tmp_path / "root")
    assert (tmp_path / "root" / "link").readlink() == Path("/etc")
    assert (tmp_path / "root" / "b").samefile(tmp_path / "root" / "a")


def test_setuid_setgid_and_world_writable_bits_are_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the library removes such bits by itself (from Python 3.11.4 on) or not."""
    root = tmp_path / "root"
    (root / "ckpt").mkdir(parents=True)
    for name, mode in (("root", 0o4755), ("group", 0o2755), ("shared", 0o777)):
        (root / "ckpt" / name).write_bytes(b"x")
        (root / "ckpt" / name).chmod(mode)
    assert save_below(root, "/ckpt/", tmp_path / "tar", free)
    new = tarfile.TarFile.extractall

    def trusting(
        tar: tarfile.TarFile, path: Path, members: Any = None, *, numeric_owner: bool = False
    ) -> None:
        new(tar, path, members, numeric_owner=numeric_owner, filter="fully_trusted")

    for folder in (tmp_path / "filtered", tmp_path / "trusted"):
        restore_below(folder, "/ckpt", tmp_path / "tar")
        back = {path.name: path.stat().st_mode & 0o7777 for path in (folder / "ckpt").iterdir()}
        assert back == {"root": 0o755, "group": 0o755, "shared": 0o755}
        monkeypatch.setattr(tarfile.TarFile, "extractall", trusting)
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)
        monkeypatch.delattr(tarfile.TarInfo, "replace", raising=False)


def test_unpacking_works_without_tarfile_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Python 3.11.2: neither the argument nor the functions are there."""
    new = tarfile.TarFile.extractall

    def old(
        tar: tarfile.TarFile, path: Path, members: Any = None, *, numeric_owner: bool = False
    ) -> None:
        new(tar, path, members, numeric_owner=numeric_owner, filter="fully_trusted")

    monkeypatch.setattr(tarfile.TarFile, "extractall", old)
    monkeypatch.delattr(tarfile, "tar_filter", raising=False)
    monkeypatch.delattr(tarfile.TarInfo, "replace", raising=False)
    test_folder_is_restored_as_saved(tmp_path)
    (tmp_path / "again").mkdir()
    test_entries_are_not_unpacked_through_symlinks_leading_outside(tmp_path / "again")


def test_disk_allowance_is_checked_before_writing(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 10_000)
    room = DiskAllowance("outputs", tmp_path, 5_000, OUTPUTS)
    with pytest.raises(AttemptFailed) as caught:
        pack(tmp_path / "large", tmp_path / "tar", room.take)
    assert caught.value.kind is FailureKind.USER
    assert (tmp_path / "tar").stat().st_size < 10_000
