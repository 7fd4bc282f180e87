"""Find entries to evict, and evicted entries to remove."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from controlplane.queries.sql import rows

_UNREFERENCED = "NOT EXISTS (SELECT FROM controlplane_task t WHERE t.cache_entry_id = e.id)"

REMOVABLE = f"FROM controlplane_cacheentry e WHERE e.evicted_at IS NOT NULL AND {_UNREFERENCED}"

OLD_ENTRIES = f"""
    FROM (VALUES (1)) AS one
    WHERE EXISTS (SELECT FROM controlplane_cacheentry WHERE evicted_at IS NULL
                  AND used_at <= %(now)s - make_interval(secs => %(cache_age)s))
       OR EXISTS (SELECT {REMOVABLE})
    """


@dataclass(frozen=True, slots=True)
class RemovableEntry:
    """An evicted entry. `is_deleted`: its attempt is deleted, so that its files belong to it."""

    entry_id: int
    attempt_uid: UUID
    prefix: str
    is_deleted: bool


def find_unused(age: float, *, now: datetime, page: int) -> list[int]:
    """Return up to `page` entries that were not used for `age` seconds, the oldest first."""
    found = rows(
        """
        SELECT id FROM controlplane_cacheentry
        WHERE evicted_at IS NULL AND used_at <= %s ORDER BY used_at, id LIMIT %s
        """,
        [now - timedelta(seconds=age), page],
    )
    return [entry_id for (entry_id,) in found]


def find_least_used(limit: int, *, page: int) -> list[int]:
    """Return up to `page` of the entries without which the others have at most `limit` bytes.

    Those not used for the longest time come first. An entry above the limit displaces no other.
    """
    found = rows(
        """
        SELECT id FROM (
            SELECT id, used_at, size_bytes, sum(size_bytes) FILTER (WHERE size_bytes <= %(limit)s)
                OVER (ORDER BY used_at DESC, id DESC) AS total
            FROM controlplane_cacheentry WHERE evicted_at IS NULL
        ) e WHERE total > %(limit)s OR size_bytes > %(limit)s ORDER BY used_at, id LIMIT %(page)s
        """,
        {"limit": limit, "page": page},
    )
    return [entry_id for (entry_id,) in found]


def list_removable(after: int, page: int) -> list[RemovableEntry]:
    """Return up to `page` evicted entries above `after` that no task refers to."""
    found = rows(
        f"""
        SELECT e.id, e.attempt_uid, e.prefix,
               NOT EXISTS (SELECT FROM controlplane_attempt a WHERE a.uid = e.attempt_uid)
               AND NOT EXISTS (SELECT FROM controlplane_cacheentry o
                               WHERE o.attempt_uid = e.attempt_uid AND o.id <> e.id)
        {REMOVABLE} AND e.id > %s ORDER BY e.id LIMIT %s
        """,
        [after, page],
    )
    return [RemovableEntry(*row) for row in found]
