"""Artifacts of attempts in files, uploaded in pieces.

The first piece, or the announcement, reserves space for the whole file. A new version discards an
incomplete one.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from controlplane.contract.artifacts import MANIFEST
from controlplane.storage.folder.root import check_space, root, sync_folder
from controlplane.storage.interface import (
    MAX_FILES,
    AnnouncedFile,
    ArtifactsTooLarge,
    ContentMismatch,
    Most,
    Reserve,
    StoreUnavailable,
    UploadProgress,
)

_NOT_STORED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}


def announce(file: AnnouncedFile, *, most: Most, reserve: Reserve) -> UploadProgress:
    """Reserve space for a file; return how many bytes of it are stored. Idempotent.

    Raise ArtifactsTooLarge, StoreFull.
    """
    draft, target = _paths(file)
    if draft.with_suffix(".done").exists() and target.is_file():
        return UploadProgress(file.size)
    _begin(file, most, reserve)
    with suppress(FileNotFoundError):
        return UploadProgress(draft.stat().st_size)
    return UploadProgress(0)


def put_piece(
    file: AnnouncedFile,
    *,
    offset: int,
    content: bytes,
    most: Most,
    reserve: Reserve,
) -> int:
    """Store a piece if it continues the stored part; return the stored bytes of the file.

    The last piece publishes the file durably. Idempotent. Raise ArtifactsTooLarge,
    ContentMismatch, StoreFull.
    """
    path, target = _paths(file)
    done = path.with_suffix(".done")
    if done.exists() and target.is_file():
        return file.size
    if offset > 0 and not path.exists():
        return 0
    if offset == 0:
        _begin(file, most, reserve)
    with path.open("ab") as draft:
        # Two web processes may receive the same piece.
        fcntl.flock(draft, fcntl.LOCK_EX)
        if done.exists() and target.is_file():
            return file.size
        found = os.fstat(draft.fileno())
        if found.st_nlink == 0:
            return 0
        here = found.st_size
        if here == offset:
            _append(file, draft, content, here)
            here += len(content)
        # Also if the draft was complete: the process that stored the last piece may have ended.
        if here == file.size:
            _finish(file, draft)
            done.touch()
        return here


def put_manifest(prefix: str, content: bytes) -> None:
    """Store the manifest of an attempt. A power cut may lose it."""
    path = root() / "artifacts" / prefix / MANIFEST
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{uuid4().hex}")
    draft.write_bytes(content)
    draft.replace(path)


def open_artifact(prefix: str, name: str) -> BinaryIO | None:
    """Return a complete file, or None. A link out of the prefix is not followed.

    Raise StoreUnavailable.
    """
    base = f"{root()}/artifacts"
    try:
        file = open(f"{base}/{prefix}/{name}", "rb")  # noqa: SIM115  returned open
    except OSError as error:
        if error.errno in _NOT_STORED:
            return None
        raise StoreUnavailable(str(error)) from error
    # The path of the opened file: one call instead of one for each folder.
    opened = os.readlink(f"/proc/self/fd/{file.fileno()}")
    for resolve in (_resolve_once, os.path.realpath):  # a link to the store may have changed
        if opened.startswith(f"{resolve(base)}/{prefix}/"):
            return file
    file.close()
    return None


def check_present() -> None:
    """Raise StoreUnavailable if there is no artifact at all, as if the folder is not mounted."""
    base = root() / "artifacts"
    if not base.is_dir():
        raise StoreUnavailable(f"the folder {base} is missing")


@cache
def _resolve_once(folder: str) -> str:
    return os.path.realpath(folder)


def link_to_artifact(prefix: str, name: str) -> None:
    """Return None: web sends artifacts itself."""


def _begin(file: AnnouncedFile, most: Most, reserve: Reserve) -> None:
    """Reserve space for the whole file. Raise ArtifactsTooLarge, StoreFull."""
    draft, _ = _paths(file)
    folder = draft.parent
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if draft.exists():
            return
        check_space(file.size)
        others, taken = _count_others(file, folder)
        limit = most()
        if taken + file.size > limit:
            raise ArtifactsTooLarge(
                f"{file.name} has {file.size} bytes: the artifacts of an attempt may have {limit}"
                f" bytes, and {taken} are used"
            )
        if others >= MAX_FILES:
            raise ArtifactsTooLarge(f"an attempt may have at most {MAX_FILES} artifacts")
        reserve(taken + file.size)
        for former in folder.glob(f"{file.name_key}-*"):
            former.unlink(missing_ok=True)
        draft.touch()


def _count_others(file: AnnouncedFile, folder: Path) -> tuple[int, int]:
    """Return the number and the final size in bytes of the attempt's other files and drafts."""
    base, target = root() / "artifacts" / file.prefix, root() / file.target
    sizes = [
        path.stat().st_size
        for path in base.rglob("*")
        if path.is_file() and not path.is_symlink() and path != target
    ]
    for draft in folder.iterdir():
        name_key, size, _ = draft.name.split("-")
        if name_key != file.name_key and draft.suffix != ".done":
            sizes.append(int(size))
    return len(sizes), sum(sizes)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, since two web processes may receive two files at once."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably."""
    while not folder.is_dir():
        _make_folder(folder.parent)
        # A concurrent removal may delete an empty parent: try again.
        with suppress(FileNotFoundError):
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)


def _append(file: AnnouncedFile, draft: BinaryIO, content: bytes, here: int) -> None:
    """Append a piece after the `here` stored bytes. Raise ContentMismatch, StoreFull."""
    if here + len(content) > file.size:
        (root() / file.draft).unlink()
        raise ContentMismatch(f"received more than the announced {file.size} bytes")
    if content:
        check_space(len(content))
    draft.write(content)
    draft.flush()


def _finish(file: AnnouncedFile, draft: BinaryIO) -> None:
    """Publish the file durably. Raise ContentMismatch, or OSError, which can be retried."""
    path, target = _paths(file)
    try:
        os.fsync(draft.fileno())
    except OSError:
        # A second fsync would wrongly report success.
        path.unlink(missing_ok=True)
        raise
    with path.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != file.sha256:
        path.unlink()
        raise ContentMismatch(f"the SHA-256 is {found}, but {file.sha256} was announced")
    _make_folder(target.parent)
    os.utime(path)  # `copying` compares times
    os.replace(path, target)
    sync_folder(target.parent)


def _paths(file: AnnouncedFile) -> tuple[Path, Path]:
    """Return the paths of the draft and of the complete file."""
    return root() / file.draft, root() / file.target
