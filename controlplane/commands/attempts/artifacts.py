"""Store the artifacts that cells upload, within a limit, below the prefix of their attempt."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID

from django.conf import settings

from controlplane.commands.tenancy.stored_bytes import forget_attempts, record_artifacts
from controlplane.contract.artifacts import is_name
from controlplane.domain.errors import CellrunError, Conflict, NotFound
from controlplane.queries.attempts.artifacts import (
    find_prefix,
    find_size_limit,
    is_over,
    is_purged,
)
from controlplane.queries.cache.entries import find_owned
from controlplane.queries.tenancy.stored_bytes import find_storage_of_attempt
from controlplane.storage.current import current_store
from controlplane.storage.interface import (
    AnnouncedFile,
    ArtifactsTooLarge,
    ContentMismatch,
    UploadProgress,
)

_MIB = 2**20


class ArtifactQuotaExceeded(CellrunError):
    """The artifacts of an attempt exceed the limit."""


class ProjectStorageExceeded(CellrunError, ArtifactsTooLarge):
    """The project would exceed its limit `stored_bytes`."""


def announce_artifact(*, uid: UUID, name: str, size: int, sha256: str) -> UploadProgress:
    """Reserve space for an artifact; return how its upload continues.

    Raise NotFound, Conflict, ArtifactQuotaExceeded, ProjectStorageExceeded.
    """
    with _upload(uid, name, size, sha256) as file:
        return current_store().announce(
            file, most=partial(_max_bytes, uid), reserve=partial(_reserve, uid)
        )


def put_artifact(
    *, uid: UUID, name: str, size: int, sha256: str, offset: int, content: bytes
) -> int:
    """Store a piece of an artifact; return how many bytes of the artifact are stored.

    The last piece completes the artifact and checks its SHA-256, or its size if the cell sent it to
    a link. A piece at a wrong offset is not stored. Raise NotFound, Conflict,
    ArtifactQuotaExceeded, ProjectStorageExceeded.
    """
    with _upload(uid, name, size, sha256) as file:
        return current_store().put_piece(
            file,
            offset=offset,
            content=content,
            most=partial(_max_bytes, uid),
            reserve=partial(_reserve, uid),
        )


def _reserve(uid: UUID, total: int) -> None:
    """Count `total` bytes for the artifacts of an attempt. Raise ProjectStorageExceeded."""
    found = find_storage_of_attempt(uid)
    if found is not None:
        storage, own = found
        size = total - own
        if size > max(storage.free, 0):
            raise ProjectStorageExceeded(storage.refuse(size))
    record_artifacts(uid, total)


def _max_bytes(uid: UUID) -> int:
    """Return the maximum total size of the attempt's artifacts: of its pool or of all pools."""
    limits = (settings.CELLRUN.max_artifact_mib, find_size_limit(uid))
    return min(limit for limit in limits if limit is not None) * _MIB


@contextmanager
def _upload(uid: UUID, name: str, size: int, sha256: str) -> Iterator[AnnouncedFile]:
    """Check that the attempt may store the artifact; translate the store's errors."""
    prefix = find_prefix(uid)
    if prefix is None:
        raise NotFound(f"there is no attempt {uid}")
    if is_over(uid):
        raise Conflict(f"attempt {uid} has ended: its artifacts do not change any more")
    if not is_name(name):
        raise NotFound(f"{name[:100]!r} cannot be the name of an artifact")
    try:
        yield AnnouncedFile(uid, prefix, name, size, sha256)
    except ProjectStorageExceeded:
        raise
    except ArtifactsTooLarge as error:
        raise ArtifactQuotaExceeded(str(error)) from error
    except ContentMismatch as error:
        raise Conflict(f"{name}: {error}") from error
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise Conflict(f"{name} is, or lies in, another artifact") from error
    finally:
        # A purge meanwhile would miss the new files: it has deleted the row that leads to them.
        if is_purged(uid):
            if uid not in find_owned([uid]):
                current_store().discard_attempts({uid: prefix})
                forget_attempts([uid])
            raise NotFound(f"attempt {uid} has been deleted")
