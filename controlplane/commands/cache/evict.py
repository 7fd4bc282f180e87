"""Evict entries: later lookups do not find them, while earlier hits keep their results.

An evicted entry goes once no task refers to it. If its attempt is deleted, its files go with it.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from controlplane.commands.attempts.artifacts import forget_attempts
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.queries.cache.retention import find_least_used, find_unused, list_removable
from controlplane.queries.sql import execute, rows
from controlplane.storage.manifests import remove_manifest

PAGE = 500


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
    while not is_over() and (found := find_least_used(limit, page=PAGE)):
        done += evict_entries(found, "the cache exceeded its maximum size", now=now)
    return done


def remove_evicted(is_over: Callable[[], bool]) -> tuple[int, OSError | None]:
    """Remove evicted entries that no task refers to; return how many, and why files remained.

    Files of an attempt that still exists are removed with its job.
    """
    removed, fault, after = 0, None, 0
    while not is_over() and (found := list_removable(after, PAGE)):
        after = found[-1].entry_id
        gone = {item.attempt_uid: item.prefix for item in found if item.is_deleted}
        failed = forget_attempts(gone)
        for item in found:
            try:
                remove_manifest(item.attempt_uid)
            except OSError as error:
                failed[item.attempt_uid] = error
        fault = next(iter(failed.values()), fault)
        done = [item.entry_id for item in found if item.attempt_uid not in failed]
        removed += execute("DELETE FROM controlplane_cacheentry WHERE id = ANY(%s)", [done])
    return removed, fault
