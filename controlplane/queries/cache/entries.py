"""Load entries of the cache."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from controlplane.queries.sql import decoded, rows

RESULT_COLUMNS = """
CASE WHEN e.id IS NULL THEN a.exit_code END AS exit_code,
CASE WHEN e.id IS NULL THEN a.result ELSE e.result END AS result,
e.id IS NULL AND a.result_truncated AS result_truncated,
CASE WHEN e.id IS NULL THEN c.name END AS cell_id"""
"""Result and cell of a task: of its attempt a on cell c, or of its cache entry e."""


@dataclass(frozen=True, slots=True)
class CachedResult:
    """An entry that is not evicted, as a lookup needs it."""

    entry_id: int
    identity: UUID
    job_id: int
    task_id: int
    attempt_uid: UUID
    prefix: str
    outputs: Sequence[Mapping[str, Any]]
    manifest_sha256: str


def find_entries(identities: Collection[UUID]) -> dict[UUID, CachedResult]:
    """Return the entries of these keys, by identity."""
    found = rows(
        """
        SELECT id, identity, job_id, task_id, attempt_uid, prefix, outputs, manifest_sha256
        FROM controlplane_cacheentry WHERE identity = ANY(%s::uuid[]) AND evicted_at IS NULL
        """,
        [list(identities)],
    )
    return {
        identity: CachedResult(entry_id, identity, job, task, uid, prefix, decoded(outputs), sha256)
        for entry_id, identity, job, task, uid, prefix, outputs, sha256 in found
    }


def hold_entries(entry_ids: Collection[int]) -> set[int]:
    """Return the entries among `entry_ids` that are not evicted; lock them against eviction."""
    found = rows(
        """
        SELECT id FROM controlplane_cacheentry
        WHERE id = ANY(%s) AND evicted_at IS NULL ORDER BY id FOR NO KEY UPDATE
        """,
        [sorted(entry_ids)],
    )
    return {entry_id for (entry_id,) in found}


def find_owned(uids: Collection[UUID]) -> set[UUID]:
    """Return the attempts among `uids` whose files belong to an entry."""
    statement = (
        "SELECT attempt_uid FROM controlplane_cacheentry WHERE attempt_uid = ANY(%s::uuid[])"
    )
    return {uid for (uid,) in rows(statement, [list(uids)])}
