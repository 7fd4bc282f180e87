"""Render the related jobs of a job as a table on its page."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin.badges import instant, list_link, page_link, state_badge
from controlplane.admin.base import Table
from controlplane.models import Job, JobDependency
from controlplane.queries.schedules import find_instant

# A parent may have thousands of children; its page shows the first of them.
_SHOWN = 50

_Row = tuple[Any, ...]

Dependency = tuple[JobDependency, Job | None]
"""A dependency of a job, and the other job if it is not deleted."""


def schedule_link(job: Job) -> SafeString | str:
    """Return the schedule that started the job, with its instant; empty if there is none."""
    firing = find_instant(job)
    if firing is None:
        return ""
    link = page_link("schedule", firing.schedule_id, firing.schedule)
    return format_html("{}, {}", link, instant(firing.at))


def relations_section(
    job: Job, dependencies: Sequence[Dependency], dependants: Sequence[JobDependency]
) -> Table:
    """Return parent, children, retries, dependencies and dependants, with links and states."""
    # Without the flag a job has neither children nor dependants.
    children = _visible(job.children.all()) if job.is_watched else []
    rows = [
        *(_row("parent", other) for other in _by_id([job.parent_id])),
        *(_row("retry of", other) for other in _by_id([job.retry_of_id])),
        *(_row("retry", other) for other in _visible(job.retries.all())),
        *_dependencies(dependencies),
        *_dependants(dependants),
        *(_row("child", other) for other in children[:_SHOWN]),
    ]
    more = None
    if len(children) > _SHOWN:
        more = list_link("job", "All children of this job", parent__id__exact=job.pk)
    return Table(
        "Related jobs",
        columns=("relation", "job", "state", "condition", "met", "failed"),
        rows=rows,
        empty="no related jobs",
        more=more,
    )


def _visible(found: Any) -> list[Job]:
    return list(found.visible().only("name", "state").order_by("id")[: _SHOWN + 1])


def _by_id(job_ids: Iterable[int | None]) -> list[Job]:
    wanted = [job_id for job_id in job_ids if job_id is not None]
    return _visible(Job.objects.filter(pk__in=wanted)) if wanted else []


def _row(what: str, job: Job) -> _Row:
    return what, page_link("job", job.pk, job), state_badge(job.state), "", "", ""


def find_dependencies(job: Job) -> list[Dependency]:
    """Return the dependencies of a job, each with the other job, or None if it is deleted."""
    found = list(JobDependency.objects.filter(job=job).order_by("id"))
    others = {other.pk: other for other in _by_id(item.on_job_id for item in found)}
    return [(item, others.get(item.on_job_id)) for item in found]


def find_dependants(job: Job) -> list[JobDependency]:
    """Return the open dependencies of other jobs on this one, which an index finds."""
    if not job.is_watched:
        return []
    found = JobDependency.objects.visible().filter(on_job_id=job.pk, met_at=None, failed_at=None)
    found = found.select_related("job").defer("job__spec", "job__annotation")
    return list(found.order_by("id")[:_SHOWN])


def _dependencies(found: Sequence[Dependency]) -> Iterator[_Row]:
    for item, other in found:
        yield (
            "depends on",
            page_link("job", other.pk, other) if other else f"{item.on_name} (deleted)",
            state_badge(other.state) if other else "",
            item.until,
            *_stamps(item),
        )


def _dependants(found: Sequence[JobDependency]) -> Iterator[_Row]:
    for item in found:
        yield (
            "dependant",
            page_link("job", item.job_id, item.job),
            state_badge(item.job.state),
            item.until,
            *_stamps(item),
        )


def _stamps(item: JobDependency) -> tuple[Any, Any]:
    return (
        instant(item.met_at) if item.met_at else "",
        instant(item.failed_at) if item.failed_at else "",
    )
