"""Load open work for the overview: counts by pool and band, the oldest and the longest of it."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Band
from controlplane.models import PoolSample
from controlplane.queries.sql import rows
from controlplane.queries.work_counts import WaitingCount, count_held, count_waiting

COUNTED_AT_ONCE = 20_000
"""Waiting tasks that a page counts itself, in some milliseconds; more are as of the last sample."""

_OLDEST_JOBS = 2_000


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

    by_band: dict[tuple[int, Band], OpenWork]
    sampled_at: datetime | None


def load_work() -> WorkCounts:
    """Return the counts of open work, at a cost that does not grow with waiting tasks."""
    waiting, sampled_at = count_waiting(COUNTED_AT_ONCE), None
    if sum(item.waiting for item in waiting) == COUNTED_AT_ONCE:
        sample = PoolSample.objects.order_by("-at").values_list("at", flat=True).first()
        if sample is not None:
            waiting, sampled_at = _sampled(sample), sample
    found: dict[tuple[int, Band], OpenWork] = defaultdict(OpenWork)
    for item in waiting:
        work = found[item.pool_id, Band(item.band)]
        work.waiting, work.stuck = item.waiting, item.stuck
    for held in count_held():
        found[held.pool_id, Band(held.band)].held[held.state] = held.number
    return WorkCounts(dict(found), sampled_at)


def _sampled(at: datetime) -> list[WaitingCount]:
    return [
        WaitingCount(sample.pool_id, band, waiting, stuck)
        for sample in PoolSample.objects.filter(at=at)
        for band, waiting, stuck in zip(Band, sample.waiting, sample.stuck, strict=True)
        if waiting
    ]


def find_oldest_waiting(limit: int, *, now: datetime) -> dict[int, datetime]:
    """Return the tasks that have waited longest, with the time since when they could start.

    Of each group, the first waiting task counts, and of all jobs the oldest ones.
    """
    found = rows(
        f"""
        WITH oldest AS (
            (SELECT id FROM controlplane_job
             WHERE state = {S.PENDING:d} AND NOT waits_for_jobs AND deleted_at IS NULL
             ORDER BY id LIMIT {_OLDEST_JOBS})
            UNION ALL
            (SELECT id FROM controlplane_job WHERE state = {S.RUNNING:d} AND deleted_at IS NULL
             ORDER BY id LIMIT {_OLDEST_JOBS})
        )
        SELECT t.id, t.since
        FROM oldest j
        JOIN controlplane_taskgroup g ON g.job_id = j.id AND g.startable_at <= %(now)s
             AND g.counts[{S.PENDING + 1}] > 0
        CROSS JOIN LATERAL (
            SELECT id, greatest(updated_at, g.startable_at) AS since FROM controlplane_task
            WHERE shape_id = g.shape_id AND group_id = g.id AND state = {S.PENDING:d}
              AND NOT attempt_open AND (not_before IS NULL OR not_before <= %(now)s)
            ORDER BY index LIMIT 1
        ) t
        ORDER BY t.since, t.id LIMIT %(limit)s
        """,
        {"now": now, "limit": limit},
    )
    return dict(found)
