"""Manifests of cache entries: result and files of an attempt, stored beside its artifacts."""

import hashlib
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.contract.artifacts import MANIFEST
from controlplane.storage.current import current_store
from controlplane.storage.interface import ArtifactStore

# Files up to this size are read by a check of their integrity.
CHECKED_BYTES = 1024 * 1024
# An entry may have 1,000 files, and the tick of convergence waits.
CHECK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The files of an entry below `prefix`, and the SHA-256 of its manifest."""

    prefix: str
    files: Sequence[Mapping[str, Any]]
    manifest_sha256: str


def put_manifest(prefix: str, *, result: str | None, files: Sequence[Mapping[str, Any]]) -> str:
    """Store the manifest of an attempt; return its SHA-256. Raise OSError."""
    digest = None if result is None else hashlib.sha256(result.encode()).hexdigest()
    listed = [{name: item[name] for name in ("name", "size", "sha256")} for item in files]
    content = json.dumps({"result_sha256": digest, "files": listed}, sort_keys=True).encode()
    current_store().put_manifest(prefix, content)
    return hashlib.sha256(content).hexdigest()


def is_complete(stored: StoredFiles) -> bool:
    """Return whether the manifest and all files are stored as they were.

    Raise OSError, and TimeoutError if the store is too slow for so many files.
    """
    manifest = {"name": MANIFEST, "size": None, "sha256": stored.manifest_sha256}
    store, until = current_store(), time.monotonic() + CHECK_SECONDS
    for item in (manifest, *stored.files):
        if time.monotonic() > until:
            raise TimeoutError(f"the check of {stored.prefix} took more than {CHECK_SECONDS:g} s")
        if not _is_intact(store, stored.prefix, item):
            store.check_present()
            return False
    return True


def _is_intact(store: ArtifactStore, prefix: str, item: Mapping[str, Any]) -> bool:
    """Return whether a file has its size and, if it is small, its SHA-256."""
    file = store.open_artifact(prefix, item["name"])
    if file is None:
        return False
    with file:
        size = file.seek(0, io.SEEK_END)
        if item["size"] not in (None, size):
            return False
        file.seek(0)
        return size > CHECKED_BYTES or hashlib.sha256(file.read()).hexdigest() == item["sha256"]
