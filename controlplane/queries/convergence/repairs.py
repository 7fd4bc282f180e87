"""Rule 12: what should follow from something else by itself, and does not; rows without a parent.

Two walks go over all there is, a page at a time, and begin again: one over the jobs that are open,
or ended a short while ago, one over the rows whose links no foreign key holds.
"""

from dataclasses import dataclass
from datetime import datetime

from controlplane.domain.state.states import JOB_STATES, TERMINAL
from controlplane.queries.integrity.recount import MOST_JOBS, MOST_TASKS
from controlplane.queries.sql import rows

_ENDED = ", ".join(f"{state:d}" for state in sorted(JOB_STATES & TERMINAL))

# Spelled by its states, as in the index of the few unsettled jobs.
UNSETTLED_JOBS = f"""
    FROM controlplane_job j
    WHERE j.state IN ({_ENDED}) AND j.settled_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM controlplane_attempt a WHERE a.job_id = j.id AND a.released_at IS NULL)
    """

# Ids read for one page of jobs, most of which may have ended long ago: some ms.
_LOOKED_THROUGH = 5_000


def due_walk(name: str) -> str:
    """The source of the walk `name`: it has not been on its way for some ticks."""
    return f"""
        FROM (VALUES ('{name}')) AS v(name) WHERE NOT EXISTS (
            SELECT 1 FROM controlplane_walk w
            WHERE w.name = v.name AND w.looked_at > %(now)s - make_interval(secs => %(walk)s)
              -- Further ahead than that is from before the clock was put back.
              AND w.looked_at <= %(now)s + make_interval(secs => %(walk)s))
        """


@dataclass(frozen=True, slots=True)
class JobsPage:
    """The next jobs to recount. `reached`: where the page behind begins; None: it is the last."""

    job_ids: list[int]
    reached: int | None


def find_jobs_page(after: int, *, ended_since: datetime, told: str) -> JobsPage:
    """Return the next jobs behind `after` that are open or ended since; not the deleted ones.

    Also those with an open alert of the kind `told`, whenever they ended.
    """
    looked = "SELECT id FROM controlplane_job WHERE id > %s ORDER BY id LIMIT %s"
    [(edge, count)] = rows(
        f"SELECT max(id), count(*) FROM ({looked}) AS looked", [after, _LOOKED_THROUGH]
    )
    found = rows(
        """
        SELECT j.id, (SELECT sum(g.task_count) FROM controlplane_taskgroup g WHERE g.job_id = j.id)
        FROM controlplane_job j
        WHERE j.id > %s AND j.id <= %s AND j.deleted_at IS NULL
          AND (j.finished_at IS NULL OR j.finished_at > %s OR 'job ' || j.id IN (
            SELECT subject FROM controlplane_alert WHERE kind = %s AND cleared_at IS NULL))
        ORDER BY j.id LIMIT %s
        """,
        [after, edge, ended_since, told, MOST_JOBS + 1],
    )
    chosen: list[int] = []
    total = 0
    for job_id, tasks in found:
        total += tasks or 0
        if chosen and (total > MOST_TASKS or len(chosen) == MOST_JOBS):
            return JobsPage(chosen, chosen[-1])
        chosen.append(job_id)
    return JobsPage(chosen, None if count < _LOOKED_THROUGH else edge)


def find_told_jobs(kind: str, job_ids: list[int]) -> set[int]:
    """Those of `job_ids` about which an alert of `kind` is open."""
    statement = """
        SELECT split_part(subject, ' ', 2)::bigint FROM controlplane_alert
        WHERE kind = %s AND cleared_at IS NULL
          AND subject = ANY(SELECT 'job ' || id FROM unnest(%s::bigint[]) AS u(id))
        """
    return {job_id for (job_id,) in rows(statement, [kind, job_ids])}


def find_alerts_of_gone_jobs(kind: str) -> list[str]:
    """The subjects of open alerts of `kind` whose jobs are deleted."""
    statement = """
        SELECT a.subject FROM controlplane_alert a
        WHERE a.kind = %s AND a.cleared_at IS NULL AND NOT EXISTS (
            SELECT 1 FROM controlplane_job j
            WHERE j.id = split_part(a.subject, ' ', 2)::bigint AND j.deleted_at IS NULL)
        ORDER BY a.id
        """
    return [subject for (subject,) in rows(statement, [kind])]
