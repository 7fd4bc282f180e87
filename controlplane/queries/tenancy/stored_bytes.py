"""Load how many bytes the store has for projects, and which limits hold."""

from collections.abc import Collection
from uuid import UUID

from controlplane.domain.jobs.stored_bytes import LimitedStorage
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.queries.placement.quotas import find_limits
from controlplane.queries.sql import rows

SIZE = "(s.file_bytes + s.stdout_bytes + s.stderr_bytes)"
"""All bytes of a row `s` of sizes."""

UNCOUNTED = "FROM controlplane_storedsize s WHERE s.is_uncounted"
"""Sizes that have changed since they were counted, a source of work of convergence."""

# The counted total, and the changes since then, which are few.
USED = f"""
(coalesce((SELECT t.total_bytes FROM controlplane_storedtotal t WHERE t.project_id = p.id), 0)
 + coalesce((SELECT sum({SIZE} - s.counted_bytes) {UNCOUNTED} AND s.project_id = p.id), 0))::bigint
"""
"""The bytes that the store has for the project `p`."""

# As in `find_limits`, which a test compares: an upload reads limit and usage in one statement.
LIMITED = """
JOIN controlplane_domain d ON d.id = p.domain_id
LEFT JOIN controlplane_quota own ON own.project_id = p.id
LEFT JOIN controlplane_quota preset ON own.id IS NULL AND preset.default_for = 'project'
"""
LIMIT = "CASE WHEN own.id IS NULL THEN preset.stored_bytes ELSE own.stored_bytes END"
"""The limit of the project `p`, joined with `LIMITED`; null: it has none."""


def count_stored_bytes(project_ids: Collection[int]) -> dict[int, int]:
    """Return how many bytes the store has for each project, by id."""
    if not project_ids:
        return {}
    statement = f"SELECT p.id, {USED} FROM unnest(%s::bigint[]) AS p (id)"
    return dict(rows(statement, [sorted(project_ids)]))


def load_limits(project_ids: Collection[int]) -> dict[int, int | None]:
    """Return the limit of each project by id, also of the default quota; None: no limit."""
    found = find_limits(Scope(ScopeKind.PROJECT, key) for key in project_ids)
    return {item.scope.key: item.stored_bytes for item in found}


def find_attempts_with_storage(cell: str, uids: Collection[UUID]) -> set[UUID]:
    """Return the attempts of a cell, among `uids`, whose projects have storage left."""
    found = rows(
        f"""
        WITH own AS (
            SELECT a.uid, j.project_id FROM controlplane_attempt a
            JOIN controlplane_cell c ON c.id = a.cell_id JOIN controlplane_job j ON j.id = a.job_id
            WHERE c.name = %s AND a.uid = ANY(%s::uuid[])
        ), limited AS MATERIALIZED (
            SELECT p.id, d.name || '/' || p.name, {LIMIT}, {USED}
            FROM controlplane_project p {LIMITED}
            WHERE p.id IN (SELECT project_id FROM own) AND {LIMIT} IS NOT NULL
        )
        SELECT own.uid, limited.* FROM own LEFT JOIN limited ON limited.id = own.project_id
        """,
        [cell, list(uids)],
    )
    return {
        uid
        for uid, project_id, *storage in found
        if project_id is None or not LimitedStorage(*storage).is_used_up
    }


def find_storage_of_attempt(uid: UUID) -> tuple[LimitedStorage, int] | None:
    """Return the storage of an attempt's project, and the bytes of its own artifacts in it.

    None: the project has no limit, or there is no such attempt.
    """
    found = rows(
        f"""
        SELECT d.name || '/' || p.name, {LIMIT}, {USED},
               coalesce((SELECT file_bytes FROM controlplane_storedsize
                         WHERE attempt_uid = a.uid), 0)
        FROM controlplane_attempt a
        JOIN controlplane_job j ON j.id = a.job_id
        JOIN controlplane_project p ON p.id = j.project_id {LIMITED}
        WHERE a.uid = %s AND {LIMIT} IS NOT NULL
        """,
        [uid],
    )
    if not found:
        return None
    [(project, limit, used, own)] = found
    return LimitedStorage(project, limit, used), own
