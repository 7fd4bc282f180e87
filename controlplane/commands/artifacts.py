"""What cells bring of attempts is kept, bounded, below a prefix that is the attempt's own."""

from uuid import UUID

from django.conf import settings

from controlplane.contract.artifacts import is_name
from controlplane.domain.errors import CellrunError, Conflict, NotFound
from controlplane.outbox import artifacts as kept
from controlplane.outbox import store
from controlplane.outbox.artifacts import Announced, OtherContent
from controlplane.queries.artifacts import find_prefix, find_prefixes_of_job, is_over

_MIB = 2**20


class TooLarge(CellrunError):
    """An attempt may not leave so much."""


def put_artifact(
    *, uid: UUID, name: str, size: int, sha256: str, offset: int, content: bytes
) -> int:
    """Take a piece of an artifact; how many bytes of it are here. Raises NotFound, Conflict.

    With the last piece the artifact is there, its SHA-256 checked. A piece that does not follow is
    not taken: the answer says where to go on. Raises TooLarge, too.
    """
    prefix = find_prefix(uid)
    if prefix is None:
        raise NotFound(f"there is no attempt {uid}")
    if is_over(uid):
        raise Conflict(f"attempt {uid} is over: what it left stays as it is")
    if not is_name(name):
        raise NotFound(f"{name[:100]!r} cannot be the name of an artifact")
    file = Announced(uid, prefix, name, size, sha256)
    most = settings.CELLRUN.max_artifact_mib * _MIB
    try:
        return kept.put_piece(file, offset=offset, content=content, most=most)
    except kept.TooLarge as error:
        raise TooLarge(str(error)) from error
    except OtherContent as error:
        raise Conflict(f"{name}: {error}") from error
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise Conflict(f"{name} is, or lies in, another artifact") from error


def forget_attempts(job_id: int, limit: int) -> list[UUID]:
    """Delete what up to `limit` attempts of a job left here, and its output; their uids."""
    found = find_prefixes_of_job(job_id, limit)
    for uid, prefix in found.items():
        kept.remove_all(uid, prefix)
        store.remove_logs(uid)
    return list(found)
