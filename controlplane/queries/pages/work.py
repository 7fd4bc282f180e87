"""Load open work for the overview: counts by pool and band, the oldest and the longest of it."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Band
from controlplane.models import PoolSample
from controlplane.queries.sql import rows
from controlplane.queries.work_counts import WaitingCount, count_held, count_waiting

COUNTED_AT_ONCE = 20_000
"""Waiting tasks that a page counts itself, in some milliseconds; more are as of the last sample."""

_OLDEST_JOBS = 1_000


@dataclass(slots=True)
class OpenWork:
    """Open work of a pool and band. `held`: by state of the attempt; None: it has ended."""

    waiting: int = 0
    stuck: int = 0
    held: dict[S | None, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Return the number of tasks that wait or hold capacity."""
        return self.waiting + sum(self.held.values())


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """Open work by pool and band. `sampled_at`: of the waiting tasks, if too many wait to count."""

    by_band: dict[tuple[int, int], OpenWork]
    sampled_at: datetime | None


def load_work() -> WorkCounts:
    """Return the counts of open work, at a cost that does not grow with waiting tasks."""
    waiting, sampled_at = count_waiting(COUNTED_AT_ONCE), None
    if sum(item.waiting for item in waiting) == COUNTED_AT_ONCE:
        sample = PoolSample.objects.order_by("-at").values_list("at", flat=True).first()
        if sample is not None:
            waiting, sampled_at = _sampled(sample), sample
    found: dict[tuple[int, int], OpenWork] = defaultdict(OpenWork)
    for item in waiting:
        work = found[item.pool_id, item.band]
        work.waiting, work.stuck = item.waiting, item.stuck
    for held in count_held():
        found[held.pool_id, held.band].held[held.state] = held.number
    return WorkCounts(dict(found), sampled_at)


def _sampled(at: datetime) -> list[WaitingCount]:
    return [
        WaitingCount(sample.pool_id, band, waiting, stuck)
        for sample in PoolSample.objects.filter(at=at)
        for band, waiting, stuck in zip(Band, sample.waiting, sample.stuck, strict=True)
        if waiting
    ]


def _oldest_jobs(state: S) -> str:
    """Return a SELECT of jobs in a state.

    The array and the order fit the index of states only. By ids, the planner would read all ended
    jobs, which are older than most others.
    """
    return f"""
        SELECT id FROM controlplane_job
        WHERE state = ANY('{{{state:d}}}'::smallint[]) AND NOT waits_for_jobs
          AND deleted_at IS NULL
        ORDER BY state DESC, id LIMIT {_OLDEST_JOBS}
        """


def _first_waiting(which: str) -> str:
    """Return a SELECT of the first waiting task of group `g` that `which` selects by an index."""
    return f"""
        SELECT id, greatest(updated_at, g.startable_at) AS since FROM controlplane_task
        WHERE {which} AND group_id = g.id AND state = {S.PENDING:d}
          AND NOT attempt_open AND (not_before IS NULL OR not_before <= %(now)s)
        ORDER BY index LIMIT 1
        """


def find_oldest_waiting(limit: int, *, now: datetime) -> dict[int, datetime]:
    """Return the tasks that have waited longest, with the time since when they could start.

    Of each group, the first waiting task counts, and the first that has grown; of all jobs, the
    oldest ones.
    """
    found = rows(
        f"""
        WITH oldest AS (
            ({_oldest_jobs(S.PENDING)}) UNION ALL ({_oldest_jobs(S.RUNNING)})
        )
        SELECT t.id, t.since
        FROM oldest j
        -- OFFSET keeps the order: a few jobs first, then their groups by an index.
        CROSS JOIN LATERAL (
            SELECT id, shape_id, startable_at FROM controlplane_taskgroup
            WHERE job_id = j.id AND startable_at <= %(now)s
              AND counts[{S.PENDING + 1}] > 0 OFFSET 0
        ) g
        CROSS JOIN LATERAL (
            ({_first_waiting("shape_id = g.shape_id")})
            UNION ALL ({_first_waiting("resources IS NOT NULL")})
        ) t
        ORDER BY t.since, t.id LIMIT %(limit)s
        """,
        {"now": now, "limit": limit},
    )
    return dict(found)


def find_longest_running(limit: int) -> list[UUID]:
    """Return the attempts that have been RUNNING longest, of all that hold capacity."""
    found = rows(
        f"""
        SELECT uid FROM controlplane_attempt
        WHERE released_at IS NULL AND state = {S.RUNNING:d} ORDER BY started_at, uid LIMIT %s
        """,
        [limit],
    )
    return [uid for (uid,) in found]
