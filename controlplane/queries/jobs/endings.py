"""Load ending jobs, and their open tasks page by page."""

from dataclasses import dataclass

from controlplane.domain.state.states import OPEN
from controlplane.queries.sql import first_row, rows, scalar

_OPEN = tuple(sorted(int(state) for state in OPEN))


@dataclass(frozen=True, slots=True)
class JobEnding:
    """The reason of a job's ending."""

    reason: str
    message: str
    force: bool


def load_ending(job_id: int) -> JobEnding | None:
    """Return the ending of a job; None if it is not ending, or has ended."""
    row = first_row(
        """
        SELECT ending_reason, failure_reason, ending_force FROM controlplane_job
        WHERE id = %s AND ending_as IS NOT NULL AND finished_at IS NULL
        """,
        [job_id],
    )
    if row is None:
        return None
    return JobEnding(row.ending_reason, row.failure_reason, row.ending_force)


def find_ending_page(job_id: int, limit: int) -> list[int]:
    """Return up to `limit` open tasks of the job, lowest ids first."""
    statement = """
        SELECT id FROM controlplane_task WHERE job_id = %s AND state = ANY(%s) ORDER BY id LIMIT %s
        """
    return [task_id for (task_id,) in rows(statement, [job_id, list(_OPEN), limit])]


def find_job_of_task(task_id: int) -> int | None:
    """Return the job of a task; None if there is no such task."""
    job_id = scalar("SELECT job_id FROM controlplane_task WHERE id = %s", [task_id])
    return None if job_id is None else int(job_id)
