"""Download artifacts to files: in parallel, resumable, and never outside of the destination."""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO

from cellrun.api.polling import PollInterval
from cellrun.api.session import Session
from cellrun.documents import Artifact
from cellrun.errors import ApiError, BadInput, ClientError, Unreachable

OnBytes = Callable[[int], None]
"""Receives the number of new bytes; negative if bytes of a partial file are discarded."""

# The end of a name of at most 255 bytes, of which a character takes up to four.
_PART_CHARS = 50
_JOIN_SECONDS = 1.0
_RANGE_NOT_SATISFIABLE = 416


class DamagedArtifact(ClientError):
    """The received content does not have the announced size and SHA-256."""


@dataclass(frozen=True, slots=True)
class Download:
    """An artifact to write to `parts` below the folder `root`."""

    item: Artifact
    root: Path
    parts: tuple[str, ...]

    @property
    def target(self) -> Path:
        """Return the path of the complete file."""
        return self.root.joinpath(*self.parts)

    @property
    def partial(self) -> Path:
        """Return the path of the incomplete file, which depends on the content."""
        name = self.parts[-1]
        text = f"{name}\0{self.item['sha256']}".encode(errors="surrogateescape")
        key = hashlib.sha256(text).hexdigest()[:12]
        return self.target.with_name(f"{name[:_PART_CHARS]}.{key}.part")


def check_targets(downloads: Sequence[Download]) -> list[Download]:
    """Return the downloads without repetitions. Raise BadInput if two write to the same file."""
    chosen: dict[Path, Download] = {}
    for download in downloads:
        former = chosen.setdefault(download.target, download)
        if former.item != download.item:
            raise BadInput(f"two artifacts would be written to {download.target}")
    for download in chosen.values():
        if download.partial in chosen:
            raise BadInput(f"two artifacts would be written to {download.partial}")
    return list(chosen.values())


def download_all(
    downloads: Sequence[Download],
    *,
    parallel: int,
    connect: Callable[[], Session],
    on_bytes: OnBytes,
) -> Generator[tuple[Download, bool | ClientError], None, None]:
    """Yield each download as it ends: whether it was necessary, or its error.

    The threads end with the process: an interrupted download leaves its partial file.
    """
    waiting: SimpleQueue[Download] = SimpleQueue()
    ended: SimpleQueue[tuple[Download, bool | ClientError] | Exception] = SimpleQueue()
    stop = threading.Event()
    for download in downloads:
        waiting.put(download)

    def report(count: int) -> None:
        if stop.is_set():
            raise SystemExit  # ends this thread only
        on_bytes(count)

    def work() -> None:
        try:
            with connect() as session:
                while not stop.is_set():
                    download = waiting.get_nowait()
                    ended.put((download, _try_to_write(session, download, report)))
        except Empty:
            return
        except Exception as fault:
            ended.put(fault)

    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(parallel, len(downloads)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in downloads:
            result = ended.get()
            if isinstance(result, Exception):
                raise result
            yield result
    finally:
        stop.set()
        for thread in threads:
            thread.join(_JOIN_SECONDS / len(threads))


def _try_to_write(session: Session, download: Download, on_bytes: OnBytes) -> bool | ClientError:
    try:
        return write_file(session, download, on_bytes)
    except ClientError as fault:
        return fault
    except OSError as fault:
        return ClientError(fault.strerror or str(fault))


def write_file(session: Session, download: Download, on_bytes: OnBytes) -> bool:
    """Write an artifact to its file once it is complete; return False if it is there already.

    Continue a partial file. Raise DamagedArtifact, Unreachable, ApiError, BadInput, OSError.
    """
    item, target, partial = download.item, download.target, download.partial
    if item["link"] is None:
        raise BadInput(f"{item['name']} is kept at {item['uri']}, and not here")
    _make_folders(download)
    counted = 0

    def report_position(position: int) -> None:
        nonlocal counted
        on_bytes(position - counted)
        counted = position

    if _has_content(target, item):
        report_position(item["size"])
        return False
    pace = PollInterval()
    session.patiently(lambda: _complete(session, download, report_position), pace)
    with suppress(FileNotFoundError):  # another process has completed the same file
        partial.replace(target)
    return True


def _complete(session: Session, download: Download, report: OnBytes) -> None:
    """Complete a partial file; if it is wrong, begin again once."""
    item, partial = download.item, download.partial
    while True:
        is_continued = _receive(session, item, partial, report)
        if _has_content(partial, item) or _has_content(download.target, item):
            return
        # Another process may be writing to the same file: it keeps its own.
        partial.unlink(missing_ok=True)
        report(0)
        if not is_continued:
            raise DamagedArtifact(f"{item['name']} was received damaged: its SHA-256 differs")


def _receive(session: Session, item: Artifact, partial: Path, report: OnBytes) -> bool:
    """Append what is missing; return whether the beginning was there before. Raise Unreachable."""
    start, size = _size_of(partial), item["size"]
    if start >= size > 0:
        return True
    report(start)
    try:
        with session.open_artifact(item, start) as (position, pieces), _open(partial) as file:
            is_continued = position > 0
            file.seek(position)
            for piece in pieces:
                position += len(piece)
                file.write(piece)
                report(position)
                if position > size:
                    return is_continued
    except ApiError as fault:
        if fault.status == _RANGE_NOT_SATISFIABLE and start:
            return True
        raise
    if position < size:
        raise Unreachable(session.url, "the connection ended early")
    return is_continued


def _make_folders(download: Download) -> None:
    """Create the folder of the file. Raise BadInput if a part of its path is a symbolic link."""
    path = download.root
    path.mkdir(parents=True, exist_ok=True)
    for part in download.parts:
        path /= part
        if path.is_symlink():
            raise BadInput(f"{path} is a symbolic link: remove it, or choose another destination")
        if path != download.target:
            path.mkdir(exist_ok=True)
        elif path.is_dir():
            raise BadInput(f"{path} is a folder: remove it, or choose another destination")


def _size_of(partial: Path) -> int:
    try:
        found = partial.lstat()
    except FileNotFoundError:
        return 0
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{partial} is not a regular file: remove it")
    return found.st_size


def _open(partial: Path) -> BinaryIO:
    """Open a file for writing anywhere; two processes then write the same bytes to one place."""
    return os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")


def _has_content(path: Path, item: Artifact) -> bool:
    """Return whether the file has the size and the SHA-256 of the artifact."""
    if not path.is_file() or path.stat().st_size != item["size"]:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == item["sha256"]
