"""Rules 7 and 8: jobs that wait for others, that end with others, or whose gangs are requeued."""

from collections.abc import Sequence

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import JOB_STATES, OPEN, TERMINAL
from controlplane.queries.locks import HAS_RUN
from controlplane.queries.sql import rows

# Arrays count from 1 there, and states from 0.
_HAS_ENDED = " AND ".join(f"d.counts[{state + 1}] = 0" for state in sorted(OPEN))

# For a group without open tasks: the rule of `domain.state.dependencies.group_dependency_status`.
_HAS_FAILED = f"""
    CASE item->>'until' WHEN 'finished' THEN FALSE
         WHEN 'started' THEN (SELECT count(*) FROM controlplane_task r
                              WHERE r.group_id = d.id AND {HAS_RUN.format(task="r")})
                             < GREATEST(d.min_available,
                                        CASE WHEN d.task_count < d.replicas THEN 0 ELSE 1 END)
         ELSE d.counts[{TaskState.SUCCEEDED + 1}] < d.min_available END
    """

BLOCKED_JOBS = """
    FROM controlplane_job j
    WHERE j.waits_for_jobs AND j.finished_at IS NULL AND j.ending_as IS NULL
      AND (NOT EXISTS (SELECT 1 FROM controlplane_jobdependency d WHERE d.job_id = j.id
                       AND d.met_at IS NULL AND d.failed_at IS NULL)
           OR EXISTS (SELECT 1 FROM controlplane_jobdependency d
                      WHERE d.job_id = j.id AND d.failed_at IS NOT NULL))
    """

WAITING_JOBS = f"""
    FROM controlplane_job j
    WHERE j.has_dependencies AND j.finished_at IS NULL AND j.ending_as IS NULL
      -- Only jobs with a failed dependency (`domain.state.dependencies`): thousands of jobs that
      -- still wait would fill each page before them.
      AND EXISTS (SELECT 1 FROM controlplane_taskgroup g
                  CROSS JOIN jsonb_array_elements(g.depends_on) AS item
                  JOIN controlplane_taskgroup d
                    ON d.job_id = g.job_id AND d.name = item->>'group' AND {_HAS_ENDED}
                   AND {_HAS_FAILED}
                  WHERE g.job_id = j.id AND g.startable_at IS NULL
                    AND g.counts[{TaskState.PENDING + 1}] > 0)
    """

UNSUCCESSFUL = ", ".join(
    f"{state:d}" for state in sorted((JOB_STATES & TERMINAL) - {TaskState.SUCCEEDED})
)

ORPHANED_JOBS = f"""
    FROM controlplane_job j JOIN controlplane_job p ON p.id = j.parent_id
    WHERE j.parent_id IS NOT NULL AND j.finished_at IS NULL AND j.ending_as IS NULL
      AND coalesce(p.ending_as, p.state) IN ({UNSUCCESSFUL})
    """

REQUEUING_JOBS = """
    FROM controlplane_job j WHERE j.is_requeuing AND j.finished_at IS NULL
    """

ENDING_JOBS = """
    FROM controlplane_job j WHERE j.ending_as IS NOT NULL AND j.finished_at IS NULL
    """


def find_pending_of_groups(group_ids: Sequence[int], limit: int) -> list[int]:
    """PENDING tasks of groups."""
    statement = f"""
        SELECT id FROM controlplane_task WHERE group_id = ANY(%s) AND state = {TaskState.PENDING:d}
        ORDER BY id LIMIT %s
        """
    return [task_id for (task_id,) in rows(statement, [list(group_ids), limit])]
