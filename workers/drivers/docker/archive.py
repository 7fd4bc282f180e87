"""Copy files into and out of a container by the Engine's archive calls, without tools inside it."""

import base64
import binascii
import json
import posixpath
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from workers.attempt.runtime import EngineError, PlacedFile

# Bits of Go's os.FileMode, as in the Engine API.
GO_DIR = 1 << 31
GO_SYMLINK = 1 << 27
GO_NOT_REGULAR = GO_DIR | GO_SYMLINK | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
FOR_ALL = 0o003  # others may write and enter
MAX_LINKS = 8
FILE_MODE = 0o644
FOLDER_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Stat:
    """The engine's stat of a path in a container."""

    mode: int
    link_target: str

    @classmethod
    def read(cls, header: str | None) -> "Stat":
        """Parse X-Docker-Container-Path-Stat. Raise EngineError."""
        try:
            body = json.loads(base64.b64decode(header or ""))
            return cls(int(body["mode"]), str(body.get("linkTarget") or ""))
        except (binascii.Error, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"unreadable path stat {header!r}") from error

    @property
    def is_regular(self) -> bool:
        """Whether it is a regular file, not a link."""
        return not self.mode & GO_NOT_REGULAR

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, not a link to one."""
        return bool(self.mode & GO_DIR)


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """Access to one container: the stat of a path, and the tar header of a folder."""

    stat: Callable[[str], Stat | None]
    header: Callable[[str], tarfile.TarInfo]


def write_tar(target: Path, placed: Sequence[PlacedFile], container: ContainerFiles) -> bool:
    """Write a tar that places `placed` when unpacked at /; return False if nothing is missing.

    It has only the entries that must change; the engine creates missing parents.
    """
    missing = False
    with tarfile.open(target, "w") as tar:
        for item in placed:
            entry = _file(item) if item.source else _folder(item, container)
            if entry is None:
                continue
            missing = True
            if item.source is None:
                tar.addfile(entry)
                continue
            with open(item.source, "rb") as file:
                tar.addfile(entry, file)
    return missing


def _file(item: PlacedFile) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(item.path.lstrip("/"))
    entry.mode = FILE_MODE
    entry.size = item.source.stat().st_size if item.source else 0
    return entry


def _folder(item: PlacedFile, container: ContainerFiles) -> tarfile.TarInfo | None:
    path = item.path
    stat = container.stat(path)
    for _ in range(MAX_LINKS):
        if stat is None or not stat.mode & GO_SYMLINK:
            break
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), stat.link_target))
        stat = container.stat(path)
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type = tarfile.DIRTYPE
    if stat is None:
        entry.mode = 0o777 if item.writable else FOLDER_MODE
        return entry
    if not item.writable or stat.mode & FOR_ALL == FOR_ALL or path == "/":
        return None
    existing = container.header(path)
    entry.uid, entry.gid = existing.uid, existing.gid
    entry.mode = existing.mode | FOR_ALL
    return entry


def first_header(stream: IO[bytes]) -> tarfile.TarInfo:
    """Return the header of the first entry of a tar. Raise EngineError."""
    with _opened(stream) as tar:
        entry = tar.next()
        if entry is None:
            raise EngineError("the engine sent an empty archive")
        return entry


def first_file(stream: IO[bytes], limit: int) -> bytes | None:
    """Return the first `limit` bytes of a tar's first entry, if it is a file. Raise EngineError."""
    with _opened(stream) as tar:
        entry = tar.next()
        file = tar.extractfile(entry) if entry is not None and entry.isreg() else None
        return file.read(limit) if file is not None else None


def _opened(stream: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=stream, mode="r|", bufsize=tarfile.BLOCKSIZE)
    except tarfile.TarError as error:
        raise EngineError(f"the engine sent an unreadable archive: {error}") from error
