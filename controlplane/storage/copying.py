"""Copy the folder of the store to an object store; interrupt it and run it again until the move.

An object appears when it is complete. A later run skips what is there with the same size and is not
older than its file. So a run during operation copies most, and a run without web copies the rest.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from controlplane.storage.objects.bucket import Bucket, StoredObject
from controlplane.storage.objects.contents import end_of, segment_key

_AREAS = ("artifacts", "drafts", "inputs", "logs")
_AT_ONCE = 4
# A file is copied again if it was written so short before its copy, or if clocks differ.
_MARGIN_SECONDS = 60.0
# For one request, which carries a part of 5 MiB at most.
_TIMEOUT = timedelta(seconds=60)


@dataclass(slots=True)
class CopyResult:
    """What a run has done: the numbers of files and bytes copied, and of files skipped."""

    files: int = 0
    size: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class _CopiedFile:
    """A file, and the key of its object."""

    path: Path
    key: str
    size: int
    changed_at: float


def copy_store(source: Path, url: str) -> Iterator[CopyResult]:
    """Copy all files; yield the result so far after each place `<area>/<first folder>`.

    Raise OSError, such as StoreUnavailable.
    """
    bucket, result = Bucket(url, timeout=_TIMEOUT), CopyResult()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for place in _places(source):
            present = {item.key: item for item in bucket.walk(place)}
            files = [file for file in _files(source, place) if not _is_present(file, present)]
            result.skipped += len(present)
            for file in threads.map(partial(_copy, bucket), files):
                if file is not None:
                    result.files += 1
                    result.size += file.size
            bucket.delete(_former_segments(files, present))
            yield result


def _copy(bucket: Bucket, file: _CopiedFile) -> _CopiedFile | None:
    """Copy a file, unless it was deleted meanwhile."""
    with suppress(FileNotFoundError):
        bucket.put_file(file.key, file.path)
        return file
    return None


def _is_present(file: _CopiedFile, present: Mapping[str, StoredObject]) -> bool:
    found = present.get(file.key)
    if found is None or found.size != file.size:
        return False
    return found.changed_at >= file.changed_at + _MARGIN_SECONDS


def _former_segments(files: list[_CopiedFile], present: Mapping[str, StoredObject]) -> list[str]:
    """Return the keys of shorter copies of the streams that were copied again.

    A longer object was written after the move.
    """
    streams = {file.key.rpartition("/")[0]: file for file in files if file.key.startswith("logs/")}
    return [
        key
        for key in present
        if (file := streams.get(key.rpartition("/")[0])) is not None
        and key != file.key
        and end_of(key) <= file.size
    ]


def _places(source: Path) -> Iterator[str]:
    for area in _AREAS:
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(source / area)):
                if (source / area / name).is_dir():
                    yield f"{area}/{name}"


def _files(source: Path, place: str) -> Iterator[_CopiedFile]:
    """Yield the complete files of a place: no drafts but the marks of complete ones."""
    for folder, _, names in os.walk(source / place):
        for name in sorted(names):
            path = Path(folder, name)
            if place.startswith("drafts/") and not name.endswith(".done"):
                continue
            if path.is_symlink() or (place.startswith("inputs/") and name.startswith(".")):
                continue
            with suppress(FileNotFoundError):
                found = path.stat()
                key = path.relative_to(source).as_posix()
                if place.startswith("logs/"):
                    key = segment_key(key, 0, found.st_size)
                yield _CopiedFile(path, key, found.st_size, found.st_mtime)
