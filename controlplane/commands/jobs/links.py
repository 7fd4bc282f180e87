"""References of a new job to other jobs: dependencies, a parent, jobs that it replaces.

The other jobs are locked: none of them can end between the check and the record of the dependency.
A job can only name an older one, so there are no cycles.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from controlplane.commands.state.apply import apply
from controlplane.contract.states import TaskState
from controlplane.domain.jobs.submission import JobsRefused, PlannedJob, waits_for_jobs
from controlplane.domain.state.dependencies import DependencyStatus, job_dependency_status
from controlplane.domain.state.effects import Effects, EndJob
from controlplane.domain.state.job_rollup import JobRow, milestones_of
from controlplane.domain.state.states import TERMINAL, Reason
from controlplane.outbox import wakes
from controlplane.queries.jobs.submission import find_guids, find_referenced
from controlplane.queries.locks import lock_jobs, read_jobs
from controlplane.queries.sql import execute
from controlplane.spec import Fault

SETTLED = "settled"
"""The `until` of a replacing job: it waits until no container of the replaced job is left."""


@dataclass(frozen=True, slots=True)
class _JobLink:
    """A reference of `job` to another job: to its parent (no `until`) or to a dependency."""

    job: PlannedJob
    field: str
    named: int | str
    until: str | None


def link_jobs(
    jobs: Sequence[PlannedJob],
    replaced: Mapping[int, Sequence[int]],
    by_key: Mapping[int, Sequence[int]],
    *,
    now: datetime,
) -> None:
    """Write the links of newly inserted jobs, in the caller's transaction. Raise JobsRefused.

    `replaced`: ids of the jobs that each job replaces, by its position. `by_key`: those that it
    replaces for its concurrency key; it does not wait for them, since placement counts their tasks.
    """
    links = [link for job in jobs for link in _links_of(job, replaced.get(job.position, ()))]
    ended = {job_id for job in jobs for job_id in by_key.get(job.position, ())}
    if not any(waits_for_jobs(job.spec) for job in jobs) and not links and not ended:
        return
    ids = _resolve(links)
    _watch(ids.values())
    others = lock_jobs({*ids.values(), *ended})
    _write_dependencies(_check(ids, others), ids, now)
    _write_parents({link: job_id for link, job_id in ids.items() if link.until is None})
    endings = [
        EndJob(job_id, TaskState.KILLED, Reason.REPLACED, f"replaced by job {job.job_id}")
        for job in jobs
        for job_id in replaced.get(job.position, ())
    ]
    endings += [
        EndJob(
            job_id,
            TaskState.KILLED,
            Reason.REPLACED,
            f"replaced by job {job.job_id}, which has the same concurrency key",
        )
        for job in jobs
        for job_id in by_key.get(job.position, ())
        if job_id in others
    ]
    apply(Effects(endings=endings), jobs=others, now=now, actor="submission")
    transaction.on_commit(wakes.wake_convergence, robust=True)


def check_links(jobs: Sequence[PlannedJob], replaced: Mapping[int, Sequence[int]]) -> None:
    """Check the links of newly inserted jobs without locks. Raise JobsRefused as `link_jobs`."""
    links = [link for job in jobs for link in _links_of(job, replaced.get(job.position, ()))]
    if links:
        ids = _resolve(links)
        _check(ids, read_jobs(ids.values()))


def forecast_links(job: PlannedJob, replaced: Sequence[int]) -> list[dict[str, Any]]:
    """Return the unmet dependencies of a planned job: {"job", "name", "until", "is_vain"}.

    `is_vain`: it can no longer be met. Raise JobsRefused as `link_jobs` does.
    """
    ids = _resolve(list(_links_of(job, replaced)))
    return [
        {
            "job": ids[link],
            "name": str(link.named),
            "until": link.until,
            "is_vain": status is DependencyStatus.IMPOSSIBLE,
        }
        for link, status in _check(ids, read_jobs(ids.values())).items()
        if status is not DependencyStatus.SATISFIED
    ]


def _links_of(job: PlannedJob, replaced: Sequence[int]) -> Iterable[_JobLink]:
    for position, item in enumerate(job.spec.depends_on):
        yield _JobLink(job, f"depends_on[{position}].job", item.job, item.until)
    if job.spec.parent is not None:
        yield _JobLink(job, "parent", job.spec.parent, None)
    for job_id in replaced:
        yield _JobLink(job, "name", job_id, SETTLED)


def _resolve(links: Sequence[_JobLink]) -> dict[_JobLink, int]:
    """Return the ids of the named jobs; a text that is no guid in the project may be an id.

    Raise JobsRefused.
    """
    keys = [(link.job.project_id, link.named) for link in links if isinstance(link.named, str)]
    by_guid = find_guids(keys)
    ids: dict[_JobLink, int] = {}
    for link in links:
        existing = by_guid.get((link.job.project_id, str(link.named)))
        if isinstance(link.named, int):
            ids[link] = link.named
        elif existing is not None:
            ids[link] = existing.job_id
        elif link.named.isascii() and link.named.isdigit() and len(link.named) <= 18:
            ids[link] = int(link.named)
    projects = find_referenced((link.job.project_id for link in links), ids.values())
    _refuse_unknown(
        link
        for link in links
        if projects.get(ids.get(link, 0)) != link.job.project_id or ids[link] >= link.job.job_id
    )
    return ids


def _check(
    ids: Mapping[_JobLink, int], others: Mapping[int, JobRow]
) -> dict[_JobLink, DependencyStatus]:
    """Return the status of each dependency on one of the jobs `others`. Raise JobsRefused."""
    # A job may have been deleted while this transaction waited for its lock.
    _refuse_unknown(link for link, job_id in ids.items() if job_id not in others)
    statuses: dict[_JobLink, DependencyStatus] = {}
    ended: list[tuple[_JobLink, str]] = []
    for link, job_id in ids.items():
        other = others[job_id]
        if link.until is not None:
            statuses[link] = job_dependency_status(milestones_of(other), link.until)
        elif other.state in TERMINAL or other.ending_as is not None:
            text = f"job {link.named} has ended, or is ending: it takes no more children"
            ended.append((link, text))
    _refuse(ended)
    return statuses


def _refuse_unknown(links: Iterable[_JobLink]) -> None:
    _refuse(
        (link, f"there is no earlier job {link.named} in project {link.job.spec.project}")
        for link in links
    )


def _refuse(links: Iterable[tuple[_JobLink, str]]) -> None:
    faults = [(link.job.position, Fault(link.field, text)) for link, text in links]
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
    statuses: Mapping[_JobLink, DependencyStatus], ids: Mapping[_JobLink, int], now: datetime
) -> None:
    if not statuses:
        return
    execute(
        """
        INSERT INTO controlplane_jobdependency
            (job_id, on_job_id, on_name, until, met_at, failed_at)
        SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[],
                             %s::timestamptz[], %s::timestamptz[])
        ON CONFLICT (job_id, on_job_id, until) DO NOTHING
        """,
        [
            [link.job.job_id for link in statuses],
            [ids[link] for link in statuses],
            [str(link.named) for link in statuses],
            [link.until for link in statuses],
            [now if it is DependencyStatus.SATISFIED else None for it in statuses.values()],
            [now if it is DependencyStatus.IMPOSSIBLE else None for it in statuses.values()],
        ],
    )


def _write_parents(parents: Mapping[_JobLink, int]) -> None:
    if parents:
        execute(
            """
            UPDATE controlplane_job j SET parent_id = i.parent_id
            FROM unnest(%s::bigint[], %s::bigint[]) AS i(id, parent_id) WHERE j.id = i.id
            """,
            [[link.job.job_id for link in parents], list(parents.values())],
        )
