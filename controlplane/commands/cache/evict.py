"""Evict entries: later lookups do not find them, while earlier hits keep their results."""

from collections.abc import Sequence
from datetime import datetime

from controlplane.commands.state.transactions import run_in_transaction
from controlplane.queries.sql import rows


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
