"""Rule 12: what should follow from something else by itself, and does not; rows without a parent.

Two walks go over all there is, a page at a time, and begin again: one over the jobs that are open,
or ended a short while ago, one over the rows whose links no foreign key holds.
"""

from collections.abc import Sequence

from controlplane.domain.state.states import JOB_STATES, TERMINAL
from controlplane.queries.sql import rows

_ENDED = ", ".join(f"{state:d}" for state in sorted(JOB_STATES & TERMINAL))

# Spelled by its states, as in the index of the few unsettled jobs.
UNSETTLED_JOBS = f"""
    FROM controlplane_job j
    WHERE j.state IN ({_ENDED}) AND j.settled_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM controlplane_attempt a WHERE a.job_id = j.id AND a.released_at IS NULL)
    """


def due_walk(name: str, age: str = "walk") -> str:
    """Return the source of the walk `name` if it has not run for the time of the parameter `age`.

    By default, that is some ticks.
    """
    return f"""
        FROM (VALUES ('{name}')) AS v(name) WHERE NOT EXISTS (
            SELECT 1 FROM controlplane_walk w
            WHERE w.name = v.name AND w.scanned_at > %(now)s - make_interval(secs => %({age})s)
              -- A later instant was written before the clock was set back.
              AND w.scanned_at <= %(now)s + make_interval(secs => %({age})s))
        """


def find_alerts_of_jobs(kind: str, job_ids: Sequence[int]) -> list[str]:
    """Return the subjects of open alerts of `kind` about `job_ids`, or about deleted jobs."""
    statement = """
        SELECT a.subject FROM controlplane_alert a
        LEFT JOIN controlplane_job j
          ON j.id = split_part(a.subject, ' ', 2)::bigint AND j.deleted_at IS NULL
        WHERE a.kind = %s AND a.cleared_at IS NULL AND (j.id IS NULL OR j.id = ANY(%s))
        ORDER BY a.id
        """
    return [subject for (subject,) in rows(statement, [kind, list(job_ids)])]
