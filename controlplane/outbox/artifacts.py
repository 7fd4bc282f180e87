"""What attempts leave, in the same folder as inputs and logs: whole files, or nothing of them.

artifacts/<shard>/<domain>/<project>/<job>/<task>/<attempt uid>/<name>
drafts/<2 hex>/<attempt uid>/<key>          a file on its way; <key>.done: it has arrived

A draft's key names what it is to become, so pieces of two versions of a file never mix.
"""

import fcntl
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from django.conf import settings

from controlplane.outbox.store import sync_folder


class TooLarge(Exception):
    """The attempt would leave more than it may."""


class OtherContent(Exception):
    """What came is not what was announced; all of it is forgotten."""


@dataclass(frozen=True, slots=True)
class Announced:
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
        key = hashlib.sha256(f"{self.size} {self.sha256} {self.name}".encode()).hexdigest()
        return _drafts(self.uid) / key


def put_piece(file: Announced, *, offset: int, content: bytes, most: int) -> int:
    """Take a piece if it follows what is here; how many bytes of the file are here then.

    The last piece makes the file appear, durably; all is repeatable. `most`: the bytes that the
    attempt may leave. Raises TooLarge, OtherContent.
    """
    done = file.draft.with_suffix(".done")
    if done.exists() and file.target.is_file():
        return file.size
    if offset == 0:
        _check_room(file, most)
    file.draft.parent.mkdir(parents=True, exist_ok=True)
    with file.draft.open("ab") as draft:
        # Two web processes may be offered the same piece.
        fcntl.flock(draft, fcntl.LOCK_EX)
        if done.exists() and file.target.is_file():
            return file.size
        here = os.fstat(draft.fileno()).st_size
        if here != offset:
            return here
        if offset + len(content) > file.size:
            file.draft.unlink()
            raise OtherContent(f"more than the {file.size} bytes that were announced")
        draft.write(content)
        draft.flush()
        here += len(content)
        if here == file.size:
            os.fsync(draft.fileno())
            _finish(file)
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
    """Forget all that an attempt left here. Repeatable."""
    for folder in (_root() / prefix, _drafts(uid)):
        shutil.rmtree(folder, ignore_errors=True)
    # The folders of its task, job, …: they go with what was last in them.
    for folder in list((_root() / prefix).parents)[:5]:
        try:
            folder.rmdir()
        except OSError:
            return


def _check_room(file: Announced, most: int) -> None:
    base = _root() / file.prefix
    others = (path for path in base.rglob("*") if path.is_file() and path != file.target)
    taken = sum(path.stat().st_size for path in others)
    if taken + file.size > most:
        raise TooLarge(
            f"{file.name} has {file.size} bytes; an attempt may leave {most}, and left {taken}"
        )


def _finish(file: Announced) -> None:
    with file.draft.open("rb") as draft:
        found = hashlib.file_digest(draft, "sha256").hexdigest()
    if found != file.sha256:
        file.draft.unlink()
        raise OtherContent(f"its sha256 is {found}, and {file.sha256} was announced")
    file.target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file.draft, file.target)
    sync_folder(file.target.parent)


def _root() -> Path:
    root: Path = settings.CELLRUN.artifact_root / "artifacts"
    return root


def _drafts(uid: UUID) -> Path:
    drafts: Path = settings.CELLRUN.artifact_root / "drafts" / uid.hex[-2:] / str(uid)
    return drafts
