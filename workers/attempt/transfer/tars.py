"""A file or folder of a container as a tar with relative names: `.`, `a`, `b/c`."""

import errno
import io
import os
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from controlplane.contract.states import FailureKind
from workers.attempt.disk import walk
from workers.attempt.outcome import DISK, AttemptFailed
from workers.attempt.runtime import EngineError

Take = Callable[[int], None]
"""Count bytes before they are written; raise the limit's error if they are too many.

Called with 0 between pieces of a counted file: a stop order may have arrived meanwhile.
"""
SAFE_MODE = 0o755  # no restored file is writable for others, setuid or setgid


class _WatchedFile(io.RawIOBase):
    """A file that checks for a stop at each read, because large ones take minutes."""

    def __init__(self, file: IO[bytes], take: Take) -> None:
        super().__init__()
        self._file = file
        self._take = take

    def read(self, size: int = -1) -> bytes:
        """Return the next piece. Raise like `take`."""
        self._take(0)
        return self._file.read(size)


def rebase(stream: IO[bytes], target: Path, take: Take) -> None:
    """Write the tar `stream` of one file or folder to `target`, with relative names.

    Only files, folders and links are kept. Raise EngineError; AttemptFailed if the disk is full.
    """
    root: str | None = None
    try:
        with (
            tarfile.open(fileobj=stream, mode="r|", bufsize=tarfile.RECORDSIZE) as source,
            tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as output,
        ):
            for entry in source:
                _free(source, output)
                stripped = entry.name.strip("/")
                root = stripped if root is None else root
                name = _relative(stripped, root)
                if name is None or not (_is_kept(entry)):
                    continue
                entry.name = name
                if entry.islnk():
                    linked = _relative(entry.linkname.strip("/"), root)
                    if linked is None:
                        continue
                    entry.linkname = linked
                entry.pax_headers = {}
                take(entry.size + tarfile.BLOCKSIZE)
                content = source.extractfile(entry) if entry.isreg() else None
                output.addfile(entry, _WatchedFile(content, take) if content is not None else None)
    except tarfile.TarError as error:
        raise EngineError(f"the engine sent an unreadable archive: {error}") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise AttemptFailed(FailureKind.SYSTEM, DISK, f"{target.name}: {error}") from error


def pack(path: Path, target: Path, take: Take) -> None:
    """Write the local file or folder `path` to `target`. Raise OSError.

    Links are stored as links, and not followed.
    """
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as output:
        _add(output, path, ".", take)
        if path.is_dir() and not path.is_symlink():
            for folder, folders, files in walk(path):
                for name in sorted((*folders, *files)):
                    inner = Path(folder, name)
                    _add(output, inner, inner.relative_to(path).as_posix(), take)


def entries_of(source: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of a tar of `pack` or `rebase`."""
    with tarfile.open(source, "r:") as tar:
        while (entry := tar.next()) is not None:
            _free(tar)
            yield entry


def check_plain(source: Path) -> None:
    """Raise EngineError unless `source` is a tar that needs no more space when it is unpacked.

    Engines also unpack compressed tars and sparse files, which may become a thousand times larger.
    A checkpoint is an upload of another cell, and the limit of its size must bound what it takes.
    """
    try:
        with open(source, "rb") as file:
            # Engines recognize compression by the first bytes, which in a tar of `pack` or `rebase`
            # are the beginning of a relative name.
            begins_with_name = file.read(1) == b"."
        with tarfile.open(source, "r:") as tar:
            while (entry := tar.next()) is not None:
                _free(tar)
                if entry.issparse() or any(map(_is_sparse_key, entry.pax_headers)):
                    raise EngineError(f"the archive has a sparse file: {entry.name!r}")
    except (tarfile.TarError, ValueError) as error:
        raise EngineError(f"the archive is not a plain tar: {error}") from error
    except OSError as error:
        raise EngineError(str(error)) from error
    if not begins_with_name:
        raise EngineError("the archive is not one of a checkpoint")


def _is_sparse_key(key: str) -> bool:
    return key.startswith("GNU.sparse.")


def _free(*tars: Any) -> None:
    """Free the entries that were read or written: a folder may have millions."""
    for tar in tars:
        tar.members.clear()


def unpack(source: Path, folder: Path) -> None:
    """Unpack a tar of `pack` or `rebase` into `folder`. Raise OSError, EngineError.

    Repeatable. No file is written outside of the folder, whatever names and links the archive has.
    """
    try:
        with tarfile.open(source, "r:") as tar:
            # Not every Python 3.11 has filters in tarfile; where they exist they are disabled,
            # because this module checks the entries.
            tar.extraction_filter = lambda entry, path: entry
            tar.extractall(folder, members=_checked(tar, folder), numeric_owner=True)
    except (tarfile.TarError, KeyError) as error:  # KeyError: a link without a target
        raise EngineError(f"the archive cannot be unpacked: {error}") from error


def _checked(tar: tarfile.TarFile, folder: Path) -> Iterator[tarfile.TarInfo]:
    """Yield each kept entry, checked once all entries before it exist in `folder`."""
    for entry in tar:
        if not _is_kept(entry):
            continue
        entry.name = _inner(entry.name, folder)
        entry.mode &= SAFE_MODE
        target = folder / entry.name
        if entry.islnk():
            entry.linkname = _inner(entry.linkname, folder)
            if entry.linkname == entry.name:
                continue
        # An existing entry is replaced: it may be a link that leads out of the folder.
        if entry.name != "." and (target.is_symlink() or entry.islnk()):
            target.unlink(missing_ok=True)
        yield entry


def _inner(name: str, folder: Path) -> str:
    """Return `name` relative to `folder` and inside it. Raise EngineError."""
    inner = _relative(name.lstrip("/") or ".", ".")
    if inner is not None:
        real = Path(os.path.realpath((folder / inner).parent if inner != "." else folder))
        if real.is_relative_to(os.path.realpath(folder)):
            return inner
    raise EngineError(f"the archive cannot be unpacked: {name!r} is outside its folder")


def _add(output: tarfile.TarFile, path: Path, name: str, take: Take) -> None:
    try:
        entry: Any = output.gettarinfo(path, arcname=name)
    except FileNotFoundError:
        return  # removed by a program that still runs
    if entry is None or not _is_kept(entry):
        return
    take(entry.size + tarfile.BLOCKSIZE)
    _free(output)
    if not entry.isreg():
        output.addfile(entry)
        return
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        output.addfile(entry, _WatchedFile(file, take))


def _is_kept(entry: tarfile.TarInfo) -> bool:
    return entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()


def _relative(name: str, root: str) -> str | None:
    """Return `name` relative to `root`; None if it lies outside."""
    if name == root:
        return "."
    inner = name.removeprefix(f"{root}/") if root not in ("", ".") else name.removeprefix("./")
    if (inner == name and root not in ("", ".")) or ".." in inner.split("/"):
        return None
    return posixpath.normpath(inner)
