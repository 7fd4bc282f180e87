"""Artifacts of attempts in an object store: small ones through web, others by link.

A cell announces a large file, sends it to the link and confirms it with an empty last piece. Web
then compares the size of the object. An object appears only when it is complete. Empty objects
record what was announced and what is complete: the drafts of `controlplane.storage.interface`.
"""

import hashlib
from typing import BinaryIO

from controlplane.contract.artifacts import MANIFEST
from controlplane.storage.interface import (
    MAX_FILES,
    AnnouncedFile,
    ArtifactsTooLarge,
    ContentMismatch,
    Most,
    Reserve,
    UploadProgress,
    drafts_of,
)
from controlplane.storage.objects.bucket import bucket

# The maximum of one PUT of S3.
MAX_OBJECT_BYTES = 5 * 2**30
_DONE = ".done"
# Azure requires it; other stores ignore it or do not get it.
_AZURE_HEADERS = {"x-ms-blob-type": "BlockBlob"}


def announce(file: AnnouncedFile, *, most: Most, reserve: Reserve) -> UploadProgress:
    """Reserve space for a file; return the link to which it is sent. Idempotent.

    Raise ArtifactsTooLarge.
    """
    if _is_complete(file, _list_drafts(file)):
        return UploadProgress(file.size)
    _check_size(file)
    # First the reservation: of two files at the limit that arrive at once, none exceeds it.
    bucket().put(file.draft, b"")
    drafts = _list_drafts(file)
    try:
        _check_limits(file, drafts, most, reserve)
    except ArtifactsTooLarge:
        bucket().delete([file.draft])
        raise
    bucket().delete(_former_versions(file, drafts))
    is_azure = bucket().url.startswith("az:")
    url = bucket().link("PUT", file.target)
    return UploadProgress(0, url, _AZURE_HEADERS if is_azure else {})


def put_piece(
    file: AnnouncedFile,
    *,
    offset: int,
    content: bytes,
    most: Most,
    reserve: Reserve,
) -> int:
    """Store a whole file, or confirm one that was sent to its link; return its stored bytes.

    Idempotent. Raise ArtifactsTooLarge, ContentMismatch.
    """
    drafts = _list_drafts(file)
    if _is_complete(file, drafts):
        return file.size
    if offset == 0 and (len(content) >= file.size):
        _check_content(file, content)
        _check_limits(file, drafts, most, reserve)
        bucket().put(file.target, content)
        _complete(file, drafts)
        return file.size
    if content:
        if offset == 0:
            raise ContentMismatch("a file of several pieces is sent to a link: announce it first")
        return 0
    if offset != file.size or file.draft not in drafts:
        return 0
    found = bucket().find(file.target)
    if found is None:
        return 0
    if found.size != file.size:
        bucket().delete([file.target])
        raise ContentMismatch(f"{found.size} bytes were sent, but {file.size} were announced")
    _complete(file, drafts)
    return file.size


def put_manifest(prefix: str, content: bytes) -> None:
    """Store the manifest of an attempt."""
    bucket().put(f"artifacts/{prefix}/{MANIFEST}", content)


def check_space() -> None:
    """Return None: an object store has no limit of its own."""


def check_present() -> None:
    """Do nothing: a request to a store that is away raises StoreUnavailable."""


def open_artifact(prefix: str, name: str) -> BinaryIO | None:
    """Open a complete file, or return None if it is not stored."""
    return bucket().open(f"artifacts/{prefix}/{name}")


def link_to_artifact(prefix: str, name: str) -> str | None:
    """Return a URL from which a stored file can be read."""
    key = f"artifacts/{prefix}/{name}"
    return bucket().link("GET", key) if bucket().find(key) is not None else None


def _list_drafts(file: AnnouncedFile) -> set[str]:
    """Return the keys of the drafts of the attempt."""
    return {item.key for item in bucket().walk(drafts_of(file.uid))}


def _is_complete(file: AnnouncedFile, drafts: set[str]) -> bool:
    if file.draft + _DONE not in drafts:
        return False
    found = bucket().find(file.target)
    return found is not None and found.size == file.size


def _former_versions(file: AnnouncedFile, drafts: set[str]) -> list[str]:
    """Return the drafts of other versions of the file."""
    ours = f"{drafts_of(file.uid)}/{file.name_key}-"
    return [key for key in drafts if key.startswith(ours) and not key.startswith(file.draft)]


def _complete(file: AnnouncedFile, drafts: set[str]) -> None:
    bucket().put(file.draft + _DONE, b"")
    left = _former_versions(file, drafts)
    bucket().delete([*left, file.draft] if file.draft in drafts else left)


def _check_size(file: AnnouncedFile) -> None:
    if file.size > MAX_OBJECT_BYTES:
        raise ArtifactsTooLarge(
            f"{file.name} has {file.size} bytes: an object store takes files of at most"
            f" {MAX_OBJECT_BYTES} bytes"
        )


def _check_content(file: AnnouncedFile, content: bytes) -> None:
    if len(content) > file.size:
        raise ContentMismatch(f"received more than the announced {file.size} bytes")
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ContentMismatch(f"the SHA-256 is {found}, but {file.sha256} was announced")


def _check_limits(file: AnnouncedFile, drafts: set[str], most: Most, reserve: Reserve) -> None:
    """Count the sizes in the names of the drafts. Raise ArtifactsTooLarge."""
    sizes: dict[str, int] = {}
    for key in drafts:
        name_key, size, _ = key.rpartition("/")[2].split("-")
        if name_key != file.name_key:
            sizes[name_key] = max(sizes.get(name_key, 0), int(size))
    taken = sum(sizes.values())
    limit = most()
    if taken + file.size > limit:
        raise ArtifactsTooLarge(
            f"{file.name} has {file.size} bytes: the artifacts of an attempt may have {limit}"
            f" bytes, and {taken} are used"
        )
    if len(sizes) >= MAX_FILES:
        raise ArtifactsTooLarge(f"an attempt may have at most {MAX_FILES} artifacts")
    reserve(taken + file.size)
