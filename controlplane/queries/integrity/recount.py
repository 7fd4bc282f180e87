"""Load the rows of a recount: jobs in pages of bounded size, and their tasks counted by state."""

from collections.abc import Sequence
from datetime import datetime

from controlplane.contract.states import TaskState
from controlplane.domain.integrity.recount import HeldTask, OpenDependency, TaskCounts
from controlplane.domain.state.dependencies import JobMilestones
from controlplane.domain.state.states import Reason
from controlplane.queries.sql import rows

# Their locks are held while their tasks are counted: some 20 ms. One job has 10,000 tasks at most.
MOST_TASKS = 10_000
MOST_JOBS = 200


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
        [after, MOST_JOBS],
    )
    chosen: list[int] = []
    total = 0
    for job_id, tasks in found:
        total += tasks
        if chosen and total > MOST_TASKS:
            break
        chosen.append(job_id)
    return chosen


def find_undeleted(job_ids: Sequence[int]) -> list[int]:
    """Those of `job_ids` that are not deleted."""
    statement = "SELECT id FROM controlplane_job WHERE id = ANY(%s) AND deleted_at IS NULL"
    return [job_id for (job_id,) in rows(statement, [list(job_ids)])]


def count_tasks(job_ids: Sequence[int], group_ids: Sequence[int]) -> dict[int, TaskCounts]:
    """The tasks of locked jobs, counted for each of `group_ids`, which are all their groups."""
    counts: dict[int, dict[TaskState, int]] = {group_id: {} for group_id in group_ids}
    for group_id, state, count in rows(_COUNTS, [list(job_ids)]):
        counts.setdefault(group_id, {})[TaskState(state)] = count
    excused = dict(
        rows(_EXCUSED, [list(job_ids), int(TaskState.KILLED), Reason.DEPENDENCY_FAILED.value])
    )
    return {
        group_id: TaskCounts(found, excused.get(group_id, 0)) for group_id, found in counts.items()
    }


def find_oddly_held(job_ids: Sequence[int]) -> list[HeldTask]:
    """Tasks of locked jobs whose `attempt_open` contradicts their attempts."""
    found = rows(
        """
        SELECT t.id, t.job_id, t.state, t.attempt_open, a.uid IS NOT NULL
        FROM controlplane_task t
        LEFT JOIN controlplane_attempt a
          ON a.task_id = t.id AND a.released_at IS NULL AND a.job_id = ANY(%(jobs)s)
        WHERE t.job_id = ANY(%(jobs)s)
          AND (t.attempt_open <> (a.uid IS NOT NULL) OR a.uid <> t.attempt_uid)
        ORDER BY t.id
        """,
        {"jobs": list(job_ids)},
    )
    return [
        HeldTask(task_id, job_id, TaskState(state), is_open, is_held)
        for task_id, job_id, state, is_open, is_held in found
    ]


def find_unwatched(job_ids: Sequence[int]) -> list[int]:
    """Return locked jobs with waiting dependants or running children whose flags are unset."""
    found = rows(
        """
        SELECT j.id FROM controlplane_job j
        WHERE j.id = ANY(%s) AND NOT j.is_watched AND (
            EXISTS (SELECT 1 FROM controlplane_jobdependency d
                    WHERE d.on_job_id = j.id AND d.met_at IS NULL AND d.failed_at IS NULL)
            OR EXISTS (SELECT 1 FROM controlplane_job c
                       WHERE c.parent_id = j.id AND c.finished_at IS NULL))
        ORDER BY j.id
        """,
        [list(job_ids)],
    )
    return [job_id for (job_id,) in found]


def find_unblocked(job_ids: Sequence[int]) -> dict[int, bool]:
    """Return locked jobs with an open dependency whose flag is unset; whether nothing of them may
    start.
    """
    found = rows(
        """
        SELECT j.id, NOT EXISTS (SELECT 1 FROM controlplane_taskgroup g
                                 WHERE g.job_id = j.id AND g.startable_at IS NOT NULL)
        FROM controlplane_job j
        WHERE j.id = ANY(%s) AND NOT j.waits_for_jobs AND j.finished_at IS NULL
          AND j.ending_as IS NULL
          AND EXISTS (SELECT 1 FROM controlplane_jobdependency d
                      WHERE d.job_id = j.id AND d.met_at IS NULL)
        ORDER BY j.id
        """,
        [list(job_ids)],
    )
    return dict(found)


def find_open_waits(job_ids: Sequence[int]) -> list[OpenDependency]:
    """What is not stamped of what others wait for in locked jobs, or locked jobs in none."""
    found = rows(
        """
        SELECT d.id, d.job_id, d.on_job_id, d.until, j.state, j.started_at, j.settled_at
        FROM controlplane_jobdependency d LEFT JOIN controlplane_job j ON j.id = d.on_job_id
        WHERE d.met_at IS NULL AND d.failed_at IS NULL
          AND (d.on_job_id = ANY(%(jobs)s) OR (d.job_id = ANY(%(jobs)s) AND j.id IS NULL))
        ORDER BY d.id FOR NO KEY UPDATE OF d
        """,
        {"jobs": list(job_ids)},
    )
    return [
        OpenDependency(key, job_id, on_job_id, until, _milestones(*of_other))
        for key, job_id, on_job_id, until, *of_other in found
    ]


def _milestones(
    state: int | None, started_at: datetime | None, settled_at: datetime | None
) -> JobMilestones | None:
    return None if state is None else JobMilestones(TaskState(state), started_at, settled_at)


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
