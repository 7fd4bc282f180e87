"""Whether any rule has work: the one statement of an idle tick; and pages of candidates."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import starmap
from uuid import UUID

from controlplane.domain.convergence.policy import Policy
from controlplane.queries.convergence import (
    alerts,
    cell_health,
    deletion,
    dependencies,
    drained,
    endings,
    images,
    lost_cells,
    overruns,
    repairs,
    resolutions,
    stuck_builds,
    unanswered,
    unplaced,
)
from controlplane.queries.convergence.parameters import parameters_of
from controlplane.queries.sql import rows

CANDIDATES = {
    "attempts_of_lost_cells": lost_cells.ATTEMPTS_OF_LOST_CELLS,
    "unanswered": unanswered.UNANSWERED,
    "stuck_builds": stuck_builds.STUCK_BUILDS,
    "overruns": overruns.OVERRUNS,
    "drained": drained.DRAINED,
    "unplaced": unplaced.UNPLACED,
    "unconfirmed_stops": cell_health.UNCONFIRMED_STOPS,
}
"""Where each rule that decides about tasks one by one finds its candidates."""

SOURCES = {
    **CANDIDATES,
    "silent_leases": lost_cells.SILENT_LEASES,
    "held_losses": lost_cells.HELD_LOSSES,
    "held_attempts": lost_cells.HELD_ATTEMPTS,
    "freed_attempts": lost_cells.FREED_ATTEMPTS,
    "stuck_stops": cell_health.STUCK_STOPS,
    "failing_cells": cell_health.FAILING_CELLS,
    "cleared_cells": cell_health.CLEARED_CELLS,
    "images": images.IMAGES,
    "blocked_jobs": dependencies.BLOCKED_JOBS,
    "waiting_jobs": dependencies.WAITING_JOBS,
    "orphaned_jobs": endings.ORPHANED_JOBS,
    "bouncing_jobs": endings.BOUNCING_JOBS,
    "ending_jobs": endings.ENDING_JOBS,
    "resolving": resolutions.RESOLVING,
    "claimed_callbacks": resolutions.CLAIMED_CALLBACKS,
    "expired_jobs": deletion.EXPIRED_JOBS,
    "old_records": deletion.OLD_RECORDS,
    "deleted_jobs": deletion.DELETED_JOBS,
    "strays": deletion.STRAYS,
    "unsettled_jobs": repairs.UNSETTLED_JOBS,
    "recount": repairs.due_walk("recount"),
    "orphans": repairs.due_walk("orphans"),
    "quiet_alerts": alerts.QUIET_ALERTS,
}
"""By name, all that convergence looks at: the rest of a SELECT."""


@dataclass(frozen=True, slots=True)
class DueTask:
    """A task that a rule may have to end, with the attempt that is looked at."""

    job_id: int
    task_id: int
    uid: UUID | None


def find_due(
    now: datetime, covered_at: datetime | None, policy: Policy, *, among: Collection[str] = SOURCES
) -> set[str]:
    """Which of the sources `among` have something to look at."""
    listed = ", ".join(f"EXISTS (SELECT 1 {SOURCES[name]})" for name in among)
    (found,) = rows(f"SELECT {listed}", parameters_of(now, covered_at, policy))
    return {name for name, due in zip(among, found, strict=True) if due}


def find_candidates(
    rule: str, *, now: datetime, covered_at: datetime | None, policy: Policy, after: int = 0
) -> list[DueTask]:
    """The rule's candidates behind the task `after`, one page; whoever decides picks again."""
    statement = f"""
        SELECT a.job_id, a.task_id, a.uid {CANDIDATES[rule]} AND a.task_id > %(after)s
        ORDER BY a.task_id LIMIT %(page)s
        """
    parameters = {**parameters_of(now, covered_at, policy), "after": after}
    return list(starmap(DueTask, rows(statement, parameters)))


def pick_candidates(
    rule: str,
    task_ids: Sequence[int],
    *,
    now: datetime,
    covered_at: datetime | None,
    policy: Policy,
) -> dict[int, UUID | None]:
    """Those of some tasks, the locks of whose jobs are held, that are candidates still.

    With the attempt that is looked at: a report may have come in between.
    """
    statement = f"""
        SELECT a.task_id, a.uid {CANDIDATES[rule]} AND a.task_id = ANY(%(ids)s::bigint[])
        """
    parameters = {**parameters_of(now, covered_at, policy), "ids": list(task_ids)}
    return dict(rows(statement, parameters))


def list_jobs_with(
    work: str,
    limit: int,
    *,
    after: int = 0,
    up_to: int | None = None,
    but: Collection[int] = (),
) -> list[int]:
    """Jobs with `work`, one of those whose names end in _jobs; oldest first.

    Only those with ids above `after`, none above `up_to`, and none of `but`.
    """
    statement = f"""
        SELECT j.id {SOURCES[work]} AND j.id > %(after)s
          AND (%(up_to)s::bigint IS NULL OR j.id <= %(up_to)s) AND j.id <> ALL(%(but)s::bigint[])
        ORDER BY j.id LIMIT %(limit)s
        """
    parameters = {"after": after, "up_to": up_to, "but": list(but), "limit": limit}
    return [job_id for (job_id,) in rows(statement, parameters)]
