"""References of a new job to other jobs: dependencies, a parent, jobs that it replaces.

The other jobs are locked: none of them can end between the check and the record of the dependency.
A job can only name an older one, so there are no cycles.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from controlplane.commands.jobs.insert import PlannedJob
from controlplane.commands.state.apply import apply
from controlplane.contract.states import TaskState
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.domain.state.dependencies import DependencyStatus, job_standing
from controlplane.domain.state.effects import Effects, EndJob
from controlplane.domain.state.job_rollup import JobRow, milestones_of
from controlplane.domain.state.states import TERMINAL, Reason
from controlplane.outbox import wakes
from controlplane.queries.jobs.submission import find_guids, find_referenced
from controlplane.queries.locks import lock_jobs, read_jobs
from controlplane.queries.sql import execute
from controlplane.spec import Fault

SETTLED = "settled"
"""Until when a job waits for one that it replaces: until no container of that is left."""


@dataclass(frozen=True, slots=True)
class _JobLink:
    """`job` names another: as a parent (no `until`), or as what it waits for."""

    job: PlannedJob
    field: str
    named: int | str
    until: str | None


def link_jobs(
    jobs: Sequence[PlannedJob], replaced: Mapping[int, Sequence[int]], *, now: datetime
) -> None:
    """Write the links of jobs that were just inserted; `replaced`: by position. In a transaction.

    Raises JobsRefused.
    """
    links = [link for job in jobs for link in _links_of(job, replaced.get(job.position, ()))]
    if not any(job.waits_for_jobs for job in jobs) and not links:
        return
    found = _resolve(links)
    _watch(found.values())
    others = lock_jobs(found.values())
    # One that was deleted while its lock was waited for may have gone with its rows.
    _check_there([link for link in links if found[link] not in others])
    _write_dependencies(links, found, others, now)
    _write_parents([link for link in links if link.until is None], found, others)
    endings = [
        EndJob(job_id, TaskState.KILLED, Reason.REPLACED, f"replaced by job {job.job_id}")
        for job in jobs
        for job_id in replaced.get(job.position, ())
    ]
    apply(Effects(endings=endings), jobs=others, now=now, actor="submission")
    transaction.on_commit(wakes.wake_convergence, robust=True)


def look_at_links(job: PlannedJob, replaced: Sequence[int]) -> list[dict[str, Any]]:
    """What a job that is not inserted would wait for: {"job", "name", "until", "is_vain"} each.

    `is_vain`: it can no longer come. Raises JobsRefused as `link_jobs` does.
    """
    links = list(_links_of(job, replaced))
    found = _resolve(links)
    others = read_jobs(found.values())
    _check_there([link for link in links if found[link] not in others])
    _check_parents([link for link in links if link.until is None], found, others)
    waits = []
    for link in links:
        stands = job_standing(milestones_of(others[found[link]]), link.until or "")
        if link.until is not None and stands is not DependencyStatus.SATISFIED:
            name, vain = str(link.named), stands is DependencyStatus.IMPOSSIBLE
            waits.append({"job": found[link], "name": name, "until": link.until, "is_vain": vain})
    return waits


def _links_of(job: PlannedJob, replaced: Sequence[int]) -> Iterable[_JobLink]:
    for position, item in enumerate(job.spec.depends_on):
        yield _JobLink(job, f"depends_on[{position}].job", item.job, item.until)
    if job.spec.parent is not None:
        yield _JobLink(job, "parent", job.spec.parent, None)
    for job_id in replaced:
        yield _JobLink(job, "name", job_id, SETTLED)


def _resolve(links: Sequence[_JobLink]) -> dict[_JobLink, int]:
    """The ids of the jobs that are named; a text that is no guid there may be an id."""
    keys = [(link.job.project_id, link.named) for link in links if isinstance(link.named, str)]
    by_guid = find_guids(keys)
    ids: dict[_JobLink, int] = {}
    for link in links:
        known = by_guid.get((link.job.project_id, str(link.named)))
        if isinstance(link.named, int):
            ids[link] = link.named
        elif known is not None:
            ids[link] = known.job_id
        elif link.named.isascii() and link.named.isdigit() and len(link.named) <= 18:
            ids[link] = int(link.named)
    projects = find_referenced((link.job.project_id for link in links), ids.values())
    unknown = []
    for link in links:
        job_id = ids.get(link, 0)
        if projects.get(job_id) != link.job.project_id or job_id >= link.job.job_id:
            unknown.append(link)
    _check_there(unknown)
    return ids


def _check_there(unknown: Sequence[_JobLink]) -> None:
    faults = []
    for link in unknown:
        text = f"there is no earlier job {link.named} in project {link.job.spec.project}"
        faults.append((link.job.position, Fault(link.field, text)))
    if faults:
        raise JobsRefused(faults)


def _watch(job_ids: Iterable[int]) -> None:
    execute(
        """
        WITH held AS MATERIALIZED (
            SELECT id FROM controlplane_job WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE
        )
        UPDATE controlplane_job j SET is_watched = true FROM held WHERE j.id = held.id
        """,
        [sorted(set(job_ids))],
    )


def _write_dependencies(
    links: Sequence[_JobLink],
    found: Mapping[_JobLink, int],
    others: Mapping[int, JobRow],
    now: datetime,
) -> None:
    waits = [link for link in links if link.until is not None]
    if not waits:
        return
    standings = [
        job_standing(milestones_of(others[found[link]]), link.until or "") for link in waits
    ]
    execute(
        """
        INSERT INTO controlplane_jobdependency
            (job_id, on_job_id, on_name, until, met_at, failed_at)
        SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[],
                             %s::timestamptz[], %s::timestamptz[])
        ON CONFLICT (job_id, on_job_id, until) DO NOTHING
        """,
        [
            [link.job.job_id for link in waits],
            [found[link] for link in waits],
            [str(link.named) for link in waits],
            [link.until for link in waits],
            [now if standing is DependencyStatus.SATISFIED else None for standing in standings],
            [now if standing is DependencyStatus.IMPOSSIBLE else None for standing in standings],
        ],
    )


def _check_parents(
    links: Sequence[_JobLink], found: Mapping[_JobLink, int], others: Mapping[int, JobRow]
) -> None:
    faults = []
    for link in links:
        parent = others[found[link]]
        if parent.state in TERMINAL or parent.ending_as is not None:
            text = f"job {link.named} has ended, or is ending: it takes no more children"
            faults.append((link.job.position, Fault("parent", text)))
    if faults:
        raise JobsRefused(faults)


def _write_parents(
    links: Sequence[_JobLink], found: Mapping[_JobLink, int], others: Mapping[int, JobRow]
) -> None:
    _check_parents(links, found, others)
    if links:
        execute(
            """
            UPDATE controlplane_job j SET parent_id = i.parent_id
            FROM unnest(%s::bigint[], %s::bigint[]) AS i(id, parent_id) WHERE j.id = i.id
            """,
            [[link.job.job_id for link in links], [found[link] for link in links]],
        )
