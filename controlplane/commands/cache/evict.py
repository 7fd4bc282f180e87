"""Evict entries: later lookups do not find them, while earlier hits keep their results."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from controlplane.commands.state.transactions import run_in_transaction
from controlplane.queries.cache.retention import find_least_used, find_unused
from controlplane.queries.sql import rows

PAGE = 500
# The search for them reads all entries.
MAX_LEAST_USED = 10_000


def evict_entries(entry_ids: Sequence[int], why: str, *, now: datetime) -> int:
    """Evict these entries; return how many were not evicted before."""

    def work() -> int:
        found = rows(
            """
            WITH held AS MATERIALIZED (
                SELECT id FROM controlplane_cacheentry
                WHERE id = ANY(%s) AND evicted_at IS NULL ORDER BY id FOR UPDATE
            )
            UPDATE controlplane_cacheentry e SET evicted_at = %s, evicted_for = %s
            FROM held WHERE e.id = held.id RETURNING e.id
            """,
            [sorted(entry_ids), now, why[:255]],
        )
        return len(found)

    return run_in_transaction(work)


def evict_old(age: float, *, now: datetime, is_over: Callable[[], bool]) -> int:
    """Evict entries that were not used for `age` seconds; return how many."""
    done = 0
    while not is_over() and (found := find_unused(age, now=now, page=PAGE)):
        done += evict_entries(found, "it was not used for long", now=now)
    return done


def evict_above(limit: int, *, now: datetime, is_over: Callable[[], bool]) -> int:
    """Evict the least recently used entries above `limit` bytes; return how many."""
    done = 0
    while not is_over() and (found := find_least_used(limit, page=MAX_LEAST_USED)):
        done += evict_entries(found, "the cache exceeded its maximum size", now=now)
    return done


def evict_corrupt(group_id: int, digests: Collection[str], *, now: datetime) -> int:
    """Evict the entries with a file of `digests` that the group reads from other groups.

    A cell has found that the stored file differs. Call it in a transaction.
    """
    found = rows(_FIND_READ, [group_id, group_id, list(digests)])
    return evict_entries([entry_id for (entry_id,) in found], "a file was corrupt", now=now)


# A retry reads from the job whose tasks it runs again, too.
_FIND_READ = """
WITH RECURSIVE chain (job_id, retry_of_id) AS (
    SELECT j.id, j.retry_of_id FROM controlplane_taskgroup g
    JOIN controlplane_job j ON j.id = g.job_id WHERE g.id = %s
    UNION ALL
    SELECT j.id, j.retry_of_id FROM chain c JOIN controlplane_job j ON j.id = c.retry_of_id
)
SELECT e.id FROM controlplane_taskgroup g
CROSS JOIN LATERAL jsonb_array_elements(g.launch -> 'inputs') i
JOIN chain c ON true
JOIN controlplane_taskgroup s ON s.job_id = c.job_id AND s.name = i ->> 'from_group'
JOIN controlplane_task t ON t.group_id = s.id
JOIN controlplane_cacheentry e ON e.id = t.cache_entry_id OR e.attempt_uid = t.attempt_uid
WHERE g.id = %s AND e.evicted_at IS NULL AND EXISTS (
    SELECT FROM jsonb_array_elements(e.outputs) f WHERE f ->> 'sha256' = ANY(%s))
"""
