"""Load one-off tasks by their guids, and the holders of guids."""

from collections.abc import Collection

from controlplane.domain.errors import Conflict, NotFound
from controlplane.queries.sql import rows, scalar


def find_task_id(reference: int | str, *, readable: Collection[int] | None) -> int:
    """Return the id of a task in a URL, given its id or its guid in one of the projects `readable`.

    An id is not checked here, but by the query for the task. Raise NotFound; Conflict if several
    projects have a task with the guid.
    """
    if isinstance(reference, int):
        return reference
    found = rows(
        """
        SELECT task_id FROM controlplane_oneoff
        WHERE guid = %(guid)s AND (%(all)s OR project_id = ANY(%(readable)s)) LIMIT 2
        """,
        {"guid": reference, "all": readable is None, "readable": sorted(readable or ())},
    )
    if not found:
        raise NotFound(f"there is no task {reference}")
    if len(found) > 1:
        raise Conflict(f"several projects have a task {reference}: use its id")
    return int(found[0][0])


def find_holder(guid: str, project_id: int) -> str | None:
    """Return the one-off task or the job that holds the guid in the project."""
    holder = scalar(
        """
        SELECT 'task ' || task_id FROM controlplane_oneoff
        WHERE guid = %(guid)s AND project_id = %(project)s
        UNION ALL
        SELECT 'job ' || id FROM controlplane_job
        WHERE project_id = %(project)s AND guid = %(guid)s AND deleted_at IS NULL
        LIMIT 1
        """,
        {"guid": guid, "project": project_id},
    )
    return None if holder is None else str(holder)
