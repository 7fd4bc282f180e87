"""Load the facts of a retry: remaining tasks, other retries, and dependencies of the old job."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.jobs.rerun import GroupRemainder, RerunDependency
from controlplane.domain.state.states import TERMINAL
from controlplane.queries.sql import decoded, first_row, rows, scalar


@dataclass(frozen=True, slots=True)
class RetriedJob:
    """The constant columns of a job to retry."""

    job_id: int
    project_id: int
    domain_id: int
    owner_id: int
    pool_id: int
    min_available: int
    parent_id: int | None
    document: Mapping[str, Any]
    is_archived: bool = False


def find_retried(job_id: int) -> RetriedJob | None:
    """Return the job; None if it does not exist or was deleted."""
    row = first_row(
        """
        SELECT j.id AS job_id, j.project_id, p.domain_id, j.owner_id, j.pool_id, j.min_available,
               j.parent_id, j.spec AS document, p.archived_at IS NOT NULL AS is_archived
        FROM controlplane_job j JOIN controlplane_project p ON p.id = j.project_id
        WHERE j.id = %s AND j.deleted_at IS NULL
        """,
        [job_id],
    )
    if row is None:
        return None
    return RetriedJob(**row._asdict() | {"document": decoded(row.document)})


def find_family(job_id: int) -> set[int]:
    """Return the job, the jobs it retries, and all their retries: these share tasks."""
    found = rows(
        """
        WITH RECURSIVE up (id, retry_of_id) AS (
            SELECT id, retry_of_id FROM controlplane_job WHERE id = %s
            UNION SELECT j.id, j.retry_of_id FROM controlplane_job j
                  JOIN up ON j.id = up.retry_of_id
        ), family (id) AS (
            SELECT id FROM up
            UNION SELECT j.id FROM controlplane_job j JOIN family f ON j.retry_of_id = f.id
        )
        SELECT id FROM family
        """,
        [job_id],
    )
    return {member for (member,) in found}


def find_newest_retry(job_id: int) -> int | None:
    """Return the newest direct or indirect retry of a job; None if there is none."""
    newest = scalar(
        """
        WITH RECURSIVE retry (id) AS (
            SELECT id FROM controlplane_job WHERE retry_of_id = %s
            UNION SELECT j.id FROM controlplane_job j JOIN retry r ON j.retry_of_id = r.id
        )
        SELECT max(j.id) FROM controlplane_job j JOIN retry r ON r.id = j.id
        WHERE j.deleted_at IS NULL
        """,
        [job_id],
    )
    return None if newest is None else int(newest)


def load_rerun_dependencies(job_id: int) -> list[RerunDependency]:
    """Return the dependencies of the job, in order."""
    found = rows(
        """
        SELECT d.on_job_id, d.on_name, d.until, d.met_at IS NOT NULL, d.failed_at IS NOT NULL,
               EXISTS (SELECT FROM controlplane_job j
                       WHERE j.id = d.on_job_id AND j.deleted_at IS NULL)
        FROM controlplane_jobdependency d WHERE d.job_id = %s ORDER BY d.id
        """,
        [job_id],
    )
    return [
        replace(item, retried_by=find_newest_retry(item.on_job_id) if item.is_failed else None)
        for item in starmap(RerunDependency, found)
    ]


def load_remainder(job_id: int) -> dict[str, GroupRemainder]:
    """Return the remaining tasks of an ended job by group, in order."""
    root = _load_first_counts(job_id)
    found = rows(
        """
        SELECT g.name, g.task_count, g.min_available, g.replicas, array_remove(
            array_agg(t.index ORDER BY t.index), NULL)
        FROM controlplane_taskgroup g
        LEFT JOIN controlplane_task t ON t.group_id = g.id AND t.state <> %s
        WHERE g.job_id = %s GROUP BY g.id ORDER BY g.position
        """,
        [int(TaskState.SUCCEEDED), job_id],
    )
    return {
        name: GroupRemainder(task_count, minimum, indices, root.get(name, 0) >= replicas)
        for name, task_count, minimum, replicas, indices in found
    }


def is_parent_open(parent_id: int | None) -> bool:
    """Return whether the job exists and may still have new children."""
    found = rows(
        """
        SELECT 1 FROM controlplane_job
        WHERE id = %s AND deleted_at IS NULL AND ending_as IS NULL AND state <> ALL(%s)
        """,
        [parent_id, sorted(int(state) for state in TERMINAL)],
    )
    return bool(found)


def _load_first_counts(job_id: int) -> dict[str, int]:
    """Return the tasks of each group in the first job of the chain that is not deleted."""
    found = rows(
        """
        WITH RECURSIVE chain (id, retry_of_id, steps) AS (
            SELECT id, retry_of_id, 0 FROM controlplane_job WHERE id = %s
            UNION ALL
            SELECT j.id, j.retry_of_id, c.steps + 1 FROM controlplane_job j
            JOIN chain c ON j.id = c.retry_of_id WHERE j.deleted_at IS NULL
        )
        SELECT g.name, g.task_count FROM controlplane_taskgroup g
        WHERE g.job_id = (SELECT id FROM chain ORDER BY steps DESC LIMIT 1)
        """,
        [job_id],
    )
    return dict(found)
