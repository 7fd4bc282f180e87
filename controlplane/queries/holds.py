"""Open holds of jobs and of their projects, and the time that tasks spent in holds."""

from collections.abc import Collection
from typing import Any

from controlplane.domain.holds import OpenHold
from controlplane.domain.roles import Role
from controlplane.queries.sql import rows

PROJECT_IS_HELD = """
EXISTS (SELECT FROM controlplane_hold h WHERE h.project_id = {project} AND h.ended_at IS NULL)
"""
"""Whether the project with the id `project` is held."""

IS_HELD = f"(j.is_held OR {PROJECT_IS_HELD.format(project='j.project_id')})"
"""Whether the job j or its project is held."""

# Holds of the job and of its project may overlap, which counts once.
TIME_IN_HOLDS = """
COALESCE((
    SELECT sum(upper(part) - lower(part)) FROM unnest((
        SELECT range_agg(tstzrange(GREATEST(h.held_at, g.startable_at), h.ended_at))
        FROM controlplane_hold h
        WHERE (h.job_id = j.id OR h.project_id = j.project_id)
          AND h.ended_at > GREATEST(h.held_at, g.startable_at)
    )) part
), interval '0')
"""
"""How long the group g of the job j was startable in released holds."""


def load_holds(job_ids: Collection[int]) -> dict[int, list[OpenHold]]:
    """Return the open holds of jobs, by job: its own, then that of its project."""
    found = rows(
        """
        SELECT j.id, h.held_by, h.reason, h.held_at, h.role,
               CASE WHEN h.project_id IS NOT NULL THEN d.name || '/' || p.name ELSE '' END
        FROM controlplane_job j
        JOIN controlplane_project p ON p.id = j.project_id
        JOIN controlplane_domain d ON d.id = p.domain_id
        JOIN controlplane_hold h
          ON h.ended_at IS NULL AND (h.job_id = j.id OR h.project_id = j.project_id)
        WHERE j.id = ANY(%s) ORDER BY j.id, h.project_id IS NOT NULL
        """,
        [sorted(job_ids)],
    )
    holds: dict[int, list[OpenHold]] = {}
    for job_id, *hold in found:
        holds.setdefault(job_id, []).append(_open_hold(*hold))
    return holds


def load_project_holds(project_ids: Collection[int]) -> dict[int, OpenHold]:
    """Return the open holds of projects, by project."""
    found = rows(
        """
        SELECT p.id, h.held_by, h.reason, h.held_at, h.role, d.name || '/' || p.name
        FROM controlplane_hold h
        JOIN controlplane_project p ON p.id = h.project_id
        JOIN controlplane_domain d ON d.id = p.domain_id
        WHERE h.project_id = ANY(%s) AND h.ended_at IS NULL
        """,
        [sorted(project_ids)],
    )
    return {project_id: _open_hold(*hold) for project_id, *hold in found}


def find_jobs_of_held_projects(job_ids: Collection[int]) -> set[int]:
    """Return those of the jobs whose project is held."""
    found = rows(
        """
        SELECT j.id FROM controlplane_hold h
        JOIN controlplane_job j ON j.project_id = h.project_id AND j.id = ANY(%s)
        WHERE h.ended_at IS NULL
        """,
        [sorted(job_ids)],
    )
    return {job_id for (job_id,) in found}


def _open_hold(by: str, reason: str, since: Any, role: str, project: str) -> OpenHold:
    return OpenHold(by, reason, since, Role(role), project)
