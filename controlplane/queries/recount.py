"""What a recount looks at: jobs in pages of bounded size, and their tasks counted by state."""

from collections.abc import Sequence

from controlplane.contract.states import TaskState
from controlplane.domain.recount import Counted
from controlplane.domain.states import Reason
from controlplane.queries.sql import rows

# Their locks are held while their tasks are counted: some 20 ms. One job has 10,000 tasks at most.
_MOST_TASKS = 10_000
_MOST_JOBS = 200


def find_page(after: int) -> list[int]:
    """The next jobs behind the job `after`, by id; not the deleted ones, whose rows are going."""
    found = rows(
        """
        SELECT page.id, COALESCE(sum(g.task_count), 0) FROM (
            SELECT id FROM controlplane_job WHERE id > %s AND deleted_at IS NULL
            ORDER BY id LIMIT %s
        ) page LEFT JOIN controlplane_taskgroup g ON g.job_id = page.id
        GROUP BY page.id ORDER BY page.id
        """,
        [after, _MOST_JOBS],
    )
    chosen: list[int] = []
    total = 0
    for job_id, tasks in found:
        total += tasks
        if chosen and total > _MOST_TASKS:
            break
        chosen.append(job_id)
    return chosen


def find_undeleted(job_ids: Sequence[int]) -> list[int]:
    """Those of `job_ids` that are not deleted."""
    statement = "SELECT id FROM controlplane_job WHERE id = ANY(%s) AND deleted_at IS NULL"
    return [job_id for (job_id,) in rows(statement, [list(job_ids)])]


def count_tasks(job_ids: Sequence[int], group_ids: Sequence[int]) -> dict[int, Counted]:
    """The tasks of locked jobs, counted for each of `group_ids`, which are all their groups."""
    counts: dict[int, dict[TaskState, int]] = {group_id: {} for group_id in group_ids}
    for group_id, state, count in rows(_COUNTS, [list(job_ids)]):
        counts.setdefault(group_id, {})[TaskState(state)] = count
    excused = dict(
        rows(_EXCUSED, [list(job_ids), int(TaskState.KILLED), Reason.DEPENDENCY_FAILED.value])
    )
    return {
        group_id: Counted(found, excused.get(group_id, 0)) for group_id, found in counts.items()
    }


_COUNTS = """
SELECT group_id, state, count(*) FROM controlplane_task WHERE job_id = ANY(%s) GROUP BY 1, 2
"""

_EXCUSED = """
SELECT t.group_id, count(*) FROM controlplane_task t
JOIN controlplane_taskgroup g ON g.id = t.group_id AND g.depends_on <> '[]'::jsonb
WHERE t.job_id = ANY(%s) AND t.state = %s AND EXISTS (
    SELECT 1 FROM controlplane_transition h WHERE h.task_id = t.id AND h.reason = %s)
GROUP BY 1
"""
