"""Rule 11: what has been kept long enough, and what refers to it still."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.queries.convergence.jobs import UNSUCCESSFUL
from controlplane.queries.sql import rows, scalar

EXPIRED_JOBS = """
    FROM controlplane_job j
    WHERE j.expires_at IS NOT NULL AND j.deleted_at IS NULL AND j.expires_at <= %(now)s
    """

DELETED_JOBS = f"""
    FROM controlplane_job j WHERE j.deleted_at IS NOT NULL AND j.settled_at IS NOT NULL
      -- Keep the row until the end of the job has reached its children and dependants.
      AND NOT EXISTS (SELECT 1 FROM controlplane_job c
                      WHERE c.parent_id = j.id AND c.finished_at IS NULL
                        AND c.ending_as IS NULL AND j.state IN ({UNSUCCESSFUL}))
      AND NOT EXISTS (SELECT 1 FROM controlplane_jobdependency d
                      WHERE d.on_job_id = j.id AND d.met_at IS NULL AND d.failed_at IS NULL)
    """


@dataclass(frozen=True, slots=True)
class Record:
    """A table of records that are kept for the time `age` after the instant `since`.

    Without `age`, those with `since` before the parameter `before` are old enough.
    """

    table: str
    since: str
    age: str
    order: str
    before: str = ""

    @property
    def old(self) -> str:
        """Return the rest of the SELECT that finds those that are old enough."""
        if self.before:
            return f"FROM {self.table} WHERE {self.since} < %({self.before})s"
        until = f"%(now)s - make_interval(secs => %({self.age})s)"
        return f"FROM {self.table} WHERE {self.since} <= {until}"


RECORDS = (
    Record("controlplane_auditline", "at", "audit_age", order="at"),
    Record("controlplane_tickrun", "finished_at", "run_age", order="finished_at"),
    Record("controlplane_poolsample", "at", "run_age", order="at"),
    Record("controlplane_cellsample", "at", "run_age", order="at"),
    Record("controlplane_cellchange", "at", "finding_age", order="at"),
    Record("controlplane_deadletter", "at", "finding_age", order="id"),
    Record("controlplane_alert", "cleared_at", "finding_age", order="id"),
    Record("controlplane_bulkoperation", "ended_at", "finding_age", order="id"),
    Record("controlplane_schedulefiring", "fired_at", "finding_age", order="fired_at"),
    Record("controlplane_notificationmessage", "ended_at", "finding_age", order="ended_at"),
    Record("controlplane_usagetotal", "month", "", order="month", before="usage_month"),
)

_OLD = " OR ".join(f"EXISTS (SELECT 1 {record.old})" for record in RECORDS)
OLD_RECORDS = f"FROM (VALUES (1)) AS one WHERE {_OLD}"

# A round begins a day after the one before it ended, and its slices are some ticks apart. In a new
# database the first slice only starts the day.
ORPHAN_FILES = """
    FROM (VALUES ('orphan_files')) AS v(name) WHERE NOT EXISTS (
        SELECT 1 FROM controlplane_walk w
        WHERE w.name = v.name AND w.scanned_at <= %(now)s
          AND w.scanned_at > %(now)s - CASE WHEN w.after = '' THEN interval '1 day'
                                           ELSE make_interval(secs => %(walk)s) END)
    """

# A retry of a retry reads from both.
READS_FROM = """
    WITH RECURSIVE retry (id, finished_at) AS (
        SELECT r.id, r.finished_at FROM controlplane_job r WHERE r.retry_of_id = j.id
        UNION SELECT r.id, r.finished_at
              FROM controlplane_job r JOIN retry ON r.retry_of_id = retry.id
    )
    SELECT id FROM retry WHERE finished_at IS NULL
"""

# For a one-off task one completed try is enough; for others the callback is delivered or abandoned.
# A deliverer that dies each time, or does not exist, must not keep a job.
_UNREFERENCED = f"""
      AND NOT EXISTS (SELECT 1 FROM controlplane_jobdependency d
                      WHERE d.on_job_id = j.id AND d.met_at IS NULL AND d.failed_at IS NULL)
      AND NOT EXISTS (SELECT 1 FROM controlplane_job c
                      WHERE c.parent_id = j.id AND c.finished_at IS NULL)
      AND NOT EXISTS (SELECT 1 FROM controlplane_callback k
                      WHERE k.job_id = j.id AND k.ended_at IS NULL
                        AND (k.state = 'claimed' OR k.give_up_at > %(now)s
                             AND NOT (j.is_one_off AND k.is_tried)))
      AND NOT EXISTS ({READS_FROM})
"""


@dataclass(frozen=True, slots=True)
class ExpiredJobs:
    """Which jobs nothing refers to, and the instant and job that were `reached`; None: the end."""

    free: list[int]
    reached: tuple[datetime, int] | None


def list_expired_jobs(
    now: datetime, limit: int, *, after: tuple[datetime, int] | None = None
) -> ExpiredJobs:
    """Those among the next `limit` jobs kept for their time, from the oldest or from `after` on."""
    at, job_id = after or ("-infinity", 0)
    [(free, last_at, last_id)] = rows(
        f"""
        WITH page AS MATERIALIZED (
            SELECT j.id, j.expires_at, j.is_one_off {EXPIRED_JOBS}
              AND (j.expires_at, j.id) > (%(at)s::timestamptz, %(id)s)
            ORDER BY j.expires_at, j.id LIMIT %(limit)s
        )
        SELECT ARRAY(SELECT j.id FROM page j WHERE true {_UNREFERENCED}
                     ORDER BY j.expires_at, j.id),
               last.expires_at, last.id
        FROM (VALUES (1)) AS one
        LEFT JOIN (SELECT * FROM page ORDER BY expires_at, id
                   OFFSET %(limit)s - 1 LIMIT 1) last ON true
        """,
        {"now": now, "limit": limit, "at": at, "id": job_id},
    )
    return ExpiredJobs(free, None if last_at is None else (last_at, last_id))


def pick_expired_jobs(job_ids: Sequence[int], now: datetime) -> list[int]:
    """Those of some jobs, whose locks are held, for which that is so still."""
    statement = f"SELECT j.id {EXPIRED_JOBS} AND j.id = ANY(%(ids)s) {_UNREFERENCED} ORDER BY j.id"
    return [job_id for (job_id,) in rows(statement, {"now": now, "ids": list(job_ids)})]


def list_deleted_jobs(after: int, limit: int) -> list[int]:
    """Deleted jobs of which nothing has to stay, by id."""
    statement = f"SELECT j.id {DELETED_JOBS} AND j.id > %(after)s ORDER BY j.id LIMIT %(limit)s"
    return [job_id for (job_id,) in rows(statement, {"after": after, "limit": limit})]


def find_reader(job_id: int) -> int | None:
    """A retry of the job that has not finished, and so reads what it left still."""
    reader = scalar(
        f"SELECT r.id FROM controlplane_job j, LATERAL ({READS_FROM}) r WHERE j.id = %s "
        "ORDER BY r.id LIMIT 1",
        [job_id],
    )
    return None if reader is None else int(reader)
