"""Load the last hour from the samples of pools: lines by minute, and failures by reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controlplane.domain.convergence.latencies import BOUNDS, percentile
from controlplane.queries.sql import named_rows, rows

HOUR = timedelta(hours=1)
_MINUTE = timedelta(minutes=1)
_JOBS_OF_REASON = 3


@dataclass(slots=True)
class Minute:
    """The sums of the samples of a minute over all pools; `waiting`, `held`: averages."""

    at: datetime
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    killed: int = 0
    waiting: float | None = None
    held: float | None = None
    latencies: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    @property
    def is_sampled(self) -> bool:
        """Return whether the minute has samples."""
        return self.held is not None

    def latency(self, share: float) -> float | None:
        """Return the percentile of the first starts of the minute, in seconds."""
        return percentile(self.latencies, share)


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Ended tasks and retried attempts with one reason, and the jobs that failed last."""

    reason: str
    tasks: int
    retried: int
    job_ids: Sequence[int]


def load_minutes(now: datetime) -> list[Minute]:
    """Return the whole minutes of the last hour, oldest first; without samples, they are empty."""
    until = now.replace(second=0, microsecond=0)
    first = until - HOUR
    minutes = {first + n * _MINUTE: Minute(first + n * _MINUTE) for n in range(60)}
    span = {"first": first, "until": until}
    found = named_rows(
        """
        SELECT date_bin('1 minute', at, 'epoch') AS at, sum(started)::bigint AS started,
               sum(succeeded)::bigint AS succeeded, sum(failed)::bigint AS failed,
               sum(killed)::bigint AS killed,
               sum(w.waiting)::float8 / count(DISTINCT at) AS waiting,
               sum(w.held)::float8 / count(DISTINCT at) AS held
        FROM controlplane_poolsample
        CROSS JOIN LATERAL (SELECT (SELECT sum(n) FROM unnest(waiting) n) AS waiting,
                                   (SELECT sum(n) FROM unnest(held) n) AS held) w
        WHERE at >= %(first)s AND at < %(until)s GROUP BY 1
        """,
        span,
    )
    for row in found:
        minutes[row.at] = Minute(**row._asdict())
    for at, bucket, number in rows(
        """
        SELECT date_bin('1 minute', at, 'epoch'), l.bucket - 1, sum(l.number)::bigint
        FROM controlplane_poolsample, unnest(latencies) WITH ORDINALITY AS l(number, bucket)
        WHERE at >= %(first)s AND at < %(until)s AND started > 0 AND l.number > 0 GROUP BY 1, 2
        """,
        span,
    ):
        minutes[at].latencies[bucket] = number
    return list(minutes.values())


def load_failures(now: datetime) -> list[FailureCount]:
    """Return the failures of the last hour, the most frequent reason first."""
    found = named_rows(
        f"""
        WITH failing AS MATERIALIZED (
            SELECT s.at, f.key AS reason, f.value FROM controlplane_poolsample s,
                   jsonb_each(s.failures) AS f
            WHERE s.at > %(since)s AND s.failures <> '{{}}'
        ), last AS (
            SELECT reason, id::bigint AS job_id, max(at) AS at
            FROM failing, jsonb_array_elements_text(value -> 'jobs') AS j(id) GROUP BY 1, 2
        ), jobs AS (
            SELECT reason, (array_agg(job_id ORDER BY at DESC, job_id DESC))[1:{_JOBS_OF_REASON}]
                   AS job_ids
            FROM last GROUP BY 1
        ), totals AS (
            SELECT reason, sum((value ->> 'tasks')::bigint)::bigint AS tasks,
                   sum((value ->> 'retried')::bigint)::bigint AS retried
            FROM failing GROUP BY 1
        )
        SELECT reason, tasks, retried, job_ids FROM totals JOIN jobs USING (reason)
        ORDER BY tasks + retried DESC, reason
        """,
        {"since": now - HOUR},
    )
    return [FailureCount(**row._asdict()) for row in found]
