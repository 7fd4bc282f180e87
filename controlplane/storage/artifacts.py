"""What attempts leave, in the same folder as inputs and logs: whole files, or nothing of them.

artifacts/<shard>/<domain>/<project>/<job>/<task>/<attempt uid>/<name>
drafts/<2 hex>/<attempt uid>/<key>          a file on its way; <key>.done: it has arrived

A draft's key names what it is to become, so pieces of two versions of a file never mix, and tells
how large that will be: room is taken for the whole of it with its first piece. Of two versions the
one that was begun last counts, and the other is forgotten.
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


class ArtifactsTooLarge(Exception):
    """The attempt would leave more than it may."""


class ContentMismatch(Exception):
    """What came is not what was announced; all of it is forgotten."""


@dataclass(frozen=True, slots=True)
class AnnouncedFile:
    """A file that is to come: below which prefix, with what name, size and SHA-256 in hex."""

    uid: UUID
    prefix: str
    name: str
    size: int
    sha256: str

    @property
    def target(self) -> Path:
        """Where it will stand."""
        return _root() / self.prefix / self.name

    @property
    def draft(self) -> Path:
        """Where it stands until then."""
        return _drafts(self.uid) / f"{self.name_key}-{self.size}-{self.sha256}"

    @property
    def name_key(self) -> str:
        """What the keys of all its versions begin with."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]


def put_piece(file: AnnouncedFile, *, offset: int, content: bytes, most: int) -> int:
    """Take a piece if it follows what is here; how many bytes of the file are here then.

    The last piece makes the file appear, durably; all is repeatable. `most`: the bytes that the
    attempt may leave. Raises ArtifactsTooLarge, ContentMismatch.
    """
    done = file.draft.with_suffix(".done")
    if done.exists() and file.target.is_file():
        return file.size
    if offset > 0 and not file.draft.exists():
        return 0
    if offset == 0:
        _begin(file, most)
    with file.draft.open("ab") as draft:
        # Two web processes may be offered the same piece.
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
        # Also when all of it came before: the process that took the last piece may have ended then.
        if here == file.size:
            _finish(file, draft)
            done.touch()
        return here


def open_artifact(prefix: str, name: str) -> BinaryIO | None:
    """A file that has arrived; None: there is none. No link leads out of its prefix."""
    base = _root() / prefix
    path = base / name
    try:
        if not path.resolve(strict=True).is_relative_to(base.resolve(strict=True)):
            return None
        file = path.open("rb")
    except OSError:
        return None
    return file


def remove_all(uid: UUID, prefix: str) -> None:
    """Forget all that an attempt left here. Repeatable. Raises OSError."""
    for folder in (_root() / prefix, _drafts(uid)):
        discard(folder)
    # The folders of its task, job, …: they go with what was last in them.
    for folder in list((_root() / prefix).parents)[:5]:
        try:
            folder.rmdir()
        except OSError:
            return


def _begin(file: AnnouncedFile, most: int) -> None:
    """Take room for the whole file. Raises ArtifactsTooLarge."""
    folder = _drafts(file.uid)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if file.draft.exists():
            return
        others, taken = _count_others(file, folder)
        if taken + file.size > most:
            raise ArtifactsTooLarge(
                f"{file.name} has {file.size} bytes; an attempt may leave {most}, and left {taken}"
            )
        if others >= MAX_FILES:
            raise ArtifactsTooLarge(f"an attempt may leave {MAX_FILES} files, and left so many")
        for former in folder.glob(f"{file.name_key}-*"):
            former.unlink(missing_ok=True)
        file.draft.touch()


def _count_others(file: AnnouncedFile, folder: Path) -> tuple[int, int]:
    """How many other files the attempt left or began, and how many bytes they have in the end."""
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
    """Two web processes may be offered two files at once."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make_folder(folder: Path) -> None:
    """Make a folder that lasts, with those that it lies in."""
    while not folder.is_dir():
        _make_folder(folder.parent)
        # What is purged beside it takes folders along that are empty: then once more.
        with suppress(FileNotFoundError):
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)


def _append(file: AnnouncedFile, draft: BinaryIO, content: bytes, here: int) -> None:
    """Take a piece behind the `here` bytes that came before. Raises ContentMismatch."""
    if here + len(content) > file.size:
        file.draft.unlink()
        raise ContentMismatch(f"more than the {file.size} bytes that were announced")
    draft.write(content)
    draft.flush()


def _finish(file: AnnouncedFile, draft: BinaryIO) -> None:
    """Let the file appear, durably. Raises ContentMismatch; after OSError it can be tried again."""
    try:
        os.fsync(draft.fileno())
    except OSError:
        # A second fsync would report success, which is wrong.
        file.draft.unlink(missing_ok=True)
        raise
    with file.draft.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != file.sha256:
        file.draft.unlink()
        raise ContentMismatch(f"its sha256 is {found}, and {file.sha256} was announced")
    _make_folder(file.target.parent)
    os.replace(file.draft, file.target)
    sync_folder(file.target.parent)


def _root() -> Path:
    root: Path = settings.CELLRUN.artifact_root / "artifacts"
    return root


def _drafts(uid: UUID) -> Path:
    drafts: Path = settings.CELLRUN.artifact_root / "drafts" / uid.hex[-2:] / str(uid)
    return drafts
