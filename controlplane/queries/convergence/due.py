"""Find rules with work, in one statement for all, and pages of their jobs."""

from collections.abc import Collection
from datetime import datetime
from types import MappingProxyType

from controlplane.domain.convergence.policy import Policy
from controlplane.queries.attempts.exec_sessions import STALE_SESSIONS
from controlplane.queries.cache import due as cache
from controlplane.queries.cache.retention import OLD_ENTRIES
from controlplane.queries.convergence import (
    cell_health,
    deletion,
    jobs,
    late_tasks,
    lost_cells,
    repairs,
)
from controlplane.queries.convergence.parameters import parameters_of
from controlplane.queries.schedules import DUE_SCHEDULES, READY_FIRINGS
from controlplane.queries.sql import rows
from controlplane.queries.tenancy import stored_bytes, usage

_QUIET = "a.last_raised_at <= %(now)s - make_interval(secs => q.seconds)"

QUIET_ALERTS = f"""
    FROM unnest(%(alert_kinds)s::text[], %(alert_seconds)s::float[]) AS q(kind, seconds)
    JOIN controlplane_alert a ON a.kind = q.kind AND a.cleared_at IS NULL AND {_QUIET}
    """

_IMAGES = "FROM controlplane_imagefailure f WHERE true"

_RESOLVING = """
    FROM controlplane_oneoff o
    WHERE o.claim IS NOT NULL AND o.claimed_at <= %(now)s - make_interval(secs => %(claim)s)
    """

_CLAIMED_CALLBACKS = """
    FROM controlplane_callback k WHERE k.state = 'claimed' AND k.claimed_until <= %(now)s
    """

_OVERDUE_ROTATIONS = "FROM controlplane_cell c WHERE c.next_key_until <= %(now)s"

_BULK_OPERATIONS = "FROM controlplane_bulkoperation b WHERE b.ended_at IS NULL"

SOURCES = MappingProxyType(
    {
        **late_tasks.CANDIDATES,
        "silent_leases": lost_cells.SILENT_LEASES,
        "held_losses": lost_cells.HELD_LOSSES,
        "held_attempts": lost_cells.HELD_ATTEMPTS,
        "freed_attempts": lost_cells.FREED_ATTEMPTS,
        "stuck_stops": cell_health.STUCK_STOPS,
        "failing_cells": cell_health.FAILING_CELLS,
        "cleared_cells": cell_health.CLEARED_CELLS,
        "images": _IMAGES,
        "blocked_jobs": jobs.BLOCKED_JOBS,
        "waiting_jobs": jobs.WAITING_JOBS,
        "orphaned_jobs": jobs.ORPHANED_JOBS,
        "requeuing_jobs": jobs.REQUEUING_JOBS,
        "ending_jobs": jobs.ENDING_JOBS,
        "cache_stores": cache.STORES,
        "cache_waiters": cache.WAITERS,
        "cache_lookups": cache.LOOKUPS,
        "key_rotations": _OVERDUE_ROTATIONS,
        "old_entries": OLD_ENTRIES,
        "cache_size": repairs.due_walk("cache_size"),
        "resolving": _RESOLVING,
        "claimed_callbacks": _CLAIMED_CALLBACKS,
        "stale_sessions": STALE_SESSIONS,
        "expired_jobs": deletion.EXPIRED_JOBS,
        "old_records": deletion.OLD_RECORDS,
        "deleted_jobs": deletion.DELETED_JOBS,
        "orphan_files": deletion.ORPHAN_FILES,
        "uncounted_sizes": stored_bytes.UNCOUNTED,
        "uncounted_usage": usage.UNCOUNTED,
        "unsettled_jobs": repairs.UNSETTLED_JOBS,
        "recount": repairs.due_walk("recount"),
        "stored_totals": repairs.due_walk("stored_totals", seconds="totals_check_seconds"),
        "orphans": repairs.due_walk("orphans"),
        "quiet_alerts": QUIET_ALERTS,
        "bulk_operations": _BULK_OPERATIONS,
        "due_schedules": DUE_SCHEDULES,
        "ready_firings": READY_FIRINGS,
        "samples": repairs.due_walk("samples", seconds="sample"),
    }
)
"""Every source of work of convergence by name: the FROM and WHERE clauses of a SELECT."""


def find_due(
    now: datetime, covered_at: datetime | None, policy: Policy, *, among: Collection[str] = SOURCES
) -> set[str]:
    """Return the sources `among` that have work."""
    listed = ", ".join(f"EXISTS (SELECT 1 {SOURCES[name]})" for name in among)
    (found,) = rows(f"SELECT {listed}", parameters_of(now, covered_at, policy))
    return {name for name, due in zip(among, found, strict=True) if due}


def list_jobs_with(
    work: str,
    limit: int,
    *,
    after: int = 0,
    up_to: int | None = None,
    but: Collection[int] = (),
) -> list[int]:
    """Return jobs with `work`, a source whose name ends in _jobs, oldest first.

    Their ids are above `after`, at most `up_to`, and not in `but`.
    """
    statement = f"""
        SELECT j.id {SOURCES[work]} AND j.id > %(after)s
          AND (%(up_to)s::bigint IS NULL OR j.id <= %(up_to)s) AND j.id <> ALL(%(but)s::bigint[])
        ORDER BY j.id LIMIT %(limit)s
        """
    parameters = {"after": after, "up_to": up_to, "but": list(but), "limit": limit}
    return [job_id for (job_id,) in rows(statement, parameters)]
