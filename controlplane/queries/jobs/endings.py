"""Jobs that are ending, and their open tasks, page by page."""

from dataclasses import dataclass

from controlplane.domain.state.states import OPEN
from controlplane.queries.sql import rows

_OPEN = sorted(int(state) for state in OPEN)


@dataclass(frozen=True, slots=True)
class JobEnding:
    """How a job ends."""

    reason: str
    message: str
    force: bool


def load_ending(job_id: int) -> JobEnding | None:
    """How the job ends; None if it is not ending, or has ended."""
    found = rows(
        """
        SELECT ending_reason, failure_reason, ending_force FROM controlplane_job
        WHERE id = %s AND ending_as IS NOT NULL AND finished_at IS NULL
        """,
        [job_id],
    )
    return JobEnding(*found[0]) if found else None


def find_ending_page(job_id: int, limit: int) -> list[int]:
    """Open tasks of the job, lowest ids first."""
    statement = """
        SELECT id FROM controlplane_task WHERE job_id = %s AND state = ANY(%s) ORDER BY id LIMIT %s
        """
    return [task_id for (task_id,) in rows(statement, [job_id, _OPEN, limit])]


def find_job_of_task(task_id: int) -> int | None:
    """The job of a task; None if there is no such task."""
    found = rows("SELECT job_id FROM controlplane_task WHERE id = %s", [task_id])
    return int(found[0][0]) if found else None
