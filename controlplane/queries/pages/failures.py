"""Load why tasks of a job did not succeed, for its page."""

from dataclasses import dataclass

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import UNSUCCESSFUL
from controlplane.queries.sql import named_rows


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The tasks of a job that ended in one state for one reason.

    `newest_task`: the one that ended last. `reasons`: the number of groups of the job.
    """

    state: int
    reason: str
    tasks: int
    newest_task: int
    reasons: int


def find_failure_groups(job_id: int, *, limit: int) -> list[FailureGroup]:
    """Return at most `limit` groups, killed tasks last, otherwise by the number of tasks.

    Most killed tasks are a consequence of the end of their job, not its cause.
    """
    found = named_rows(
        f"""
        SELECT state, failure_reason AS reason, count(*) AS tasks,
               (array_agg(id ORDER BY finished_at DESC, id DESC))[1] AS newest_task,
               count(*) OVER () AS reasons
        FROM controlplane_task WHERE job_id = %s AND state = ANY(%s)
        GROUP BY state, failure_reason
        ORDER BY state = {TaskState.KILLED:d}, count(*) DESC, failure_reason LIMIT %s
        """,
        [job_id, sorted(UNSUCCESSFUL), limit],
    )
    return [FailureGroup(*row) for row in found]


@dataclass(frozen=True, slots=True)
class RetriedTasks:
    """Open tasks of a job of which attempts failed. `counter`: the field that counts these."""

    counter: str
    tasks: int
    newest_task: int


def find_retried_tasks(job_id: int) -> list[RetriedTasks]:
    """Return the open tasks that failed by their program, and by their cell, if there are any."""
    found = named_rows(
        """
        SELECT c.counter, count(*) AS tasks,
               (array_agg(t.id ORDER BY t.updated_at DESC, t.id DESC))[1] AS newest_task
        FROM controlplane_task t CROSS JOIN LATERAL (VALUES
            ('failure_count', t.failure_count), ('system_failure_count', t.system_failure_count)
        ) AS c(counter, number)
        WHERE t.job_id = %s AND t.finished_at IS NULL
              -- Few tasks have failed; each of the others would become two rows.
              AND (t.failure_count > 0 OR t.system_failure_count > 0) AND c.number > 0
        GROUP BY c.counter ORDER BY c.counter
        """,
        [job_id],
    )
    return [RetriedTasks(*row) for row in found]
