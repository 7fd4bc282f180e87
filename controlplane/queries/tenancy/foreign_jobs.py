"""Hide the jobs of other projects in documents for a reader."""

from collections.abc import Collection
from typing import TypeVar

from controlplane.domain.foreign_jobs import named_jobs, without_jobs
from controlplane.queries.tenancy.access import find_projects_of_jobs

T = TypeVar("T")


def hide_foreign_jobs(
    document: T, readable: Collection[int] | None, *, own: Collection[int] = ()
) -> T:
    """Return a document that names no job outside the projects `readable`; None: all projects.

    A job that is gone is hidden as well, since its project is no longer known. `own`: jobs that the
    reader is known to read.
    """
    if readable is None or not (named := {*named_jobs(document)}.difference(own)):
        return document
    projects = find_projects_of_jobs(named)
    hidden = {job_id for job_id in named if projects.get(job_id) not in readable}
    found: T = without_jobs(document, hidden) if hidden else document
    return found
