"""Artifacts of attempts, in the folder of inputs and logs: complete files only.

artifacts/<shard>/<domain>/<project>/<job>/<task>/<attempt uid>/<name>
drafts/<2 hex>/<attempt uid>/<key>          an incomplete file; <key>.done: it is complete

The key of a draft contains name, size and SHA-256 of the file, so that pieces of two versions never
mix. The first piece reserves space for the whole file. A new version discards an incomplete one.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from django.conf import settings

from controlplane.contract.messages.reports import MAX_OUTPUTS
from controlplane.storage.store import sync_folder
from controlplane.storage.trash import discard

# All outputs that a report may name, and the checkpoint.
MAX_FILES = MAX_OUTPUTS + 1
# Files up to this size are read by a check of their integrity.
CHECKED_BYTES = 1024 * 1024


class ArtifactsTooLarge(Exception):
    """The artifacts of the attempt would exceed a limit."""


class ContentMismatch(Exception):
    """The content differs from the announced file; the draft is discarded."""


@dataclass(frozen=True, slots=True)
class AnnouncedFile:
    """A file to be uploaded below `prefix`, with name, size in bytes and SHA-256 in hex."""

    uid: UUID
    prefix: str
    name: str
    size: int
    sha256: str

    @property
    def target(self) -> Path:
        """Return the path of the complete file."""
        return _root() / self.prefix / self.name

    @property
    def draft(self) -> Path:
        """Return the path of the draft."""
        return _drafts(self.uid) / f"{self.name_key}-{self.size}-{self.sha256}"

    @property
    def name_key(self) -> str:
        """Return the common prefix of the keys of all versions of the file."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]


def put_piece(file: AnnouncedFile, *, offset: int, content: bytes, most: int) -> int:
    """Store a piece if it continues the stored part; return the stored bytes of the file.

    The last piece publishes the file durably. Idempotent. `most`: limit in bytes for all artifacts
    of the attempt. Raise ArtifactsTooLarge, ContentMismatch.
    """
    done = file.draft.with_suffix(".done")
    if done.exists() and file.target.is_file():
        return file.size
    if offset > 0 and not file.draft.exists():
        return 0
    if offset == 0:
        _begin(file, most)
    with file.draft.open("ab") as draft:
        # Two web processes may receive the same piece.
        fcntl.flock(draft, fcntl.LOCK_EX)
        if done.exists() and file.target.is_file():
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


def open_artifact(prefix: str, name: str) -> BinaryIO | None:
    """Return a complete file, or None. A link out of the prefix is not followed."""
    base = _root() / prefix
    path = base / name
    try:
        if not path.resolve(strict=True).is_relative_to(base.resolve(strict=True)):
            return None
        file = path.open("rb")
    except OSError:
        return None
    return file


def is_intact(prefix: str, name: str, *, size: int, sha256: str) -> bool:
    """Return whether a complete file has this size and, if it is small, this SHA-256.

    Raise OSError.
    """
    try:
        with (_root() / prefix / name).open("rb") as file:
            if os.fstat(file.fileno()).st_size != size:
                return False
            is_small = size <= CHECKED_BYTES
            return not is_small or hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove_all(uid: UUID, prefix: str) -> None:
    """Remove all artifacts and drafts of an attempt. Idempotent. Raise OSError."""
    for folder in (_root() / prefix, _drafts(uid)):
        discard(folder)
    # The folders of its task, job, …, if they are empty.
    for folder in list((_root() / prefix).parents)[:5]:
        try:
            folder.rmdir()
        except OSError:
            return


def _begin(file: AnnouncedFile, most: int) -> None:
    """Reserve space for the whole file. Raise ArtifactsTooLarge."""
    folder = _drafts(file.uid)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if file.draft.exists():
            return
        others, taken = _count_others(file, folder)
        if taken + file.size > most:
            raise ArtifactsTooLarge(
                f"{file.name} has {file.size} bytes: the artifacts of an attempt may have {most}"
                f" bytes, and {taken} are used"
            )
        if others >= MAX_FILES:
            raise ArtifactsTooLarge(f"an attempt may have at most {MAX_FILES} artifacts")
        for former in folder.glob(f"{file.name_key}-*"):
            former.unlink(missing_ok=True)
        file.draft.touch()


def _count_others(file: AnnouncedFile, folder: Path) -> tuple[int, int]:
    """Return the number and the final size in bytes of the attempt's other files and drafts."""
    base = _root() / file.prefix
    sizes = [
        path.stat().st_size
        for path in base.rglob("*")
        if path.is_file() and not path.is_symlink() and path != file.target
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
    """Append a piece after the `here` stored bytes. Raise ContentMismatch."""
    if here + len(content) > file.size:
        file.draft.unlink()
        raise ContentMismatch(f"received more than the announced {file.size} bytes")
    draft.write(content)
    draft.flush()


def _finish(file: AnnouncedFile, draft: BinaryIO) -> None:
    """Publish the file durably. Raise ContentMismatch, or OSError, which can be retried."""
    try:
        os.fsync(draft.fileno())
    except OSError:
        # A second fsync would wrongly report success.
        file.draft.unlink(missing_ok=True)
        raise
    with file.draft.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != file.sha256:
        file.draft.unlink()
        raise ContentMismatch(f"the SHA-256 is {found}, but {file.sha256} was announced")
    _make_folder(file.target.parent)
    os.replace(file.draft, file.target)
    sync_folder(file.target.parent)


def _root() -> Path:
    root: Path = settings.CELLRUN.artifact_root / "artifacts"
    return root


def _drafts(uid: UUID) -> Path:
    drafts: Path = settings.CELLRUN.artifact_root / "drafts" / uid.hex[-2:] / str(uid)
    return drafts
