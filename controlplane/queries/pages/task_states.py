"""Load the states of all tasks of a job, in a compact form for a chart."""

from dataclasses import dataclass

from controlplane.queries.sql import rows

STATE_BASE = ord("a") - 1
"""A state is the letter of its number: `a` is 1."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """Consecutive tasks of a group: ids and indexes grow by 1. `states`: a letter for each."""

    group: str
    first_id: int
    first_index: int
    states: str


def find_task_runs(job_id: int) -> list[TaskRun]:
    """Return the tasks of a job by group and index; most groups are one run."""
    found = rows(
        """
        SELECT g.name, r.first_id, r.first_index, r.states, r.is_run
        FROM (
            SELECT group_id, min(id) AS first_id, min(index) AS first_index,
                   string_agg(chr(%s + state), '' ORDER BY index) AS states,
                   max(id) - min(id) = count(*) - 1 AND min(id - index) = max(id - index) AS is_run
            FROM controlplane_task WHERE job_id = %s GROUP BY group_id
        ) r JOIN controlplane_taskgroup g ON g.id = r.group_id
        ORDER BY g.position
        """,
        [STATE_BASE, job_id],
    )
    if all(is_run for *_, is_run in found):
        return [TaskRun(*run) for *run, _ in found]
    return _find_split_runs(job_id)


def _find_split_runs(job_id: int) -> list[TaskRun]:
    """Return the runs of groups whose ids or indexes have gaps, at twice the cost."""
    found = rows(
        """
        SELECT g.name, r.first_id, r.first_index, r.states
        FROM (
            SELECT group_id, min(id) AS first_id, min(index) AS first_index,
                   string_agg(chr(%s + state), '' ORDER BY index) AS states
            FROM (
                SELECT id, group_id, index, state,
                       row_number() OVER (PARTITION BY group_id ORDER BY index) AS place
                FROM controlplane_task WHERE job_id = %s
            ) t GROUP BY group_id, id - place, index - place
        ) r JOIN controlplane_taskgroup g ON g.id = r.group_id
        ORDER BY g.position, r.first_index
        """,
        [STATE_BASE, job_id],
    )
    return [TaskRun(*row) for row in found]
