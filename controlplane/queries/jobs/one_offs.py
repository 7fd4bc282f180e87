"""Load one-off tasks by their guids, and the holders of guids."""

from controlplane.domain.errors import NotFound
from controlplane.queries.sql import scalar


def find_task_id(reference: int | str) -> int:
    """Return the id of a task in a URL, given its id or guid. Raise NotFound.

    An id is not checked here, but by the query for the task.
    """
    if isinstance(reference, int):
        return reference
    task_id = scalar("SELECT task_id FROM controlplane_oneoff WHERE guid = %s", [reference])
    if task_id is None:
        raise NotFound(f"there is no task {reference}")
    return int(task_id)


def find_holder(guid: str, project_id: int) -> str | None:
    """Return the holder of the guid: a one-off task of any project, or a job of this project."""
    holder = scalar(
        """
        SELECT 'task ' || task_id FROM controlplane_oneoff WHERE guid = %(guid)s
        UNION ALL
        SELECT 'job ' || id FROM controlplane_job
        WHERE project_id = %(project)s AND guid = %(guid)s AND deleted_at IS NULL
        LIMIT 1
        """,
        {"guid": guid, "project": project_id},
    )
    return None if holder is None else str(holder)
