"""Manifests of cache entries in the store: the files of an attempt, with size and SHA-256.

manifests/<2 hex>/<attempt uid>
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from controlplane.storage import artifacts


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The files of an entry, and the SHA-256 of its manifest."""

    uid: UUID
    prefix: str
    files: Sequence[Mapping[str, Any]]
    manifest_sha256: str


def put_manifest(uid: UUID, *, result: str | None, files: Sequence[Mapping[str, Any]]) -> str:
    """Store the manifest of an attempt; return its SHA-256. Raise OSError."""
    digest = None if result is None else hashlib.sha256(result.encode()).hexdigest()
    listed = [{name: item[name] for name in ("name", "size", "sha256")} for item in files]
    content = json.dumps({"result_sha256": digest, "files": listed}, sort_keys=True).encode()
    path = _path(uid)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.replace(path)
    return hashlib.sha256(content).hexdigest()


def is_complete(stored: StoredFiles) -> bool:
    """Return whether the manifest and all files are stored as they were. Raise OSError."""
    try:
        content = _path(stored.uid).read_bytes()
    except FileNotFoundError:
        return False
    if hashlib.sha256(content).hexdigest() != stored.manifest_sha256:
        return False
    return all(
        artifacts.is_intact(stored.prefix, item["name"], size=item["size"], sha256=item["sha256"])
        for item in stored.files
    )


def remove_manifest(uid: UUID) -> None:
    """Remove the manifest of an attempt. Idempotent. Raise OSError."""
    _path(uid).unlink(missing_ok=True)


def _path(uid: UUID) -> Path:
    root: Path = settings.CELLRUN.artifact_root
    return root / "manifests" / uid.hex[-2:] / str(uid)
