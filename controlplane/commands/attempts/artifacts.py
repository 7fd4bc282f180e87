"""Store the artifacts that cells upload, within a limit, below the prefix of their attempt."""

from collections.abc import Collection, Mapping
from uuid import UUID

from django.conf import settings

from controlplane.contract.artifacts import is_name
from controlplane.domain.errors import CellrunError, Conflict, NotFound
from controlplane.queries.attempts.artifacts import find_prefix, is_over, is_purged
from controlplane.storage import artifacts as artifact_store
from controlplane.storage import store
from controlplane.storage.artifacts import AnnouncedFile, ContentMismatch

_MIB = 2**20


class ArtifactQuotaExceeded(CellrunError):
    """The artifacts of an attempt exceed the limit."""


def put_artifact(
    *, uid: UUID, name: str, size: int, sha256: str, offset: int, content: bytes
) -> int:
    """Store a piece of an artifact; return how many bytes of the artifact are stored.

    The last piece completes the artifact and checks its SHA-256. A piece at a wrong offset is not
    stored. Raise NotFound, Conflict, ArtifactQuotaExceeded.
    """
    prefix = find_prefix(uid)
    if prefix is None:
        raise NotFound(f"there is no attempt {uid}")
    if is_over(uid):
        raise Conflict(f"attempt {uid} has ended: its artifacts do not change any more")
    if not is_name(name):
        raise NotFound(f"{name[:100]!r} cannot be the name of an artifact")
    file = AnnouncedFile(uid, prefix, name, size, sha256)
    most = settings.CELLRUN.max_artifact_mib * _MIB
    try:
        return artifact_store.put_piece(file, offset=offset, content=content, most=most)
    except artifact_store.ArtifactsTooLarge as error:
        raise ArtifactQuotaExceeded(str(error)) from error
    except ContentMismatch as error:
        raise Conflict(f"{name}: {error}") from error
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise Conflict(f"{name} is, or lies in, another artifact") from error
    finally:
        # A purge meanwhile would miss the new files: it has deleted the row that leads to them.
        if is_purged(uid):
            artifact_store.remove_all(uid, prefix)
            raise NotFound(f"attempt {uid} has been deleted")


def forget_attempts(
    prefixes: Mapping[UUID, str], owned: Collection[UUID] = ()
) -> dict[UUID, OSError]:
    """Remove artifacts and output of attempts; return the errors by uid.

    `owned`: attempts whose artifacts belong to entries of the cache, and stay. Idempotent. Call it
    outside transactions: a disk may be slow.
    """
    failed = {}
    for uid, prefix in prefixes.items():
        try:
            if uid not in owned:
                artifact_store.remove_all(uid, prefix)
            store.remove_logs(uid)
        except OSError as error:
            failed[uid] = error
    return failed
