"""Load jobs for the API and the admin, newest first, with the counts of their tasks.

The queries here and in the other modules of views exclude deleted jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from controlplane.contract.states import TaskState
from controlplane.contract.trace_context import read_trace
from controlplane.domain.errors import NotFound
from controlplane.domain.state.states import name_band
from controlplane.models import Job
from controlplane.queries.holds import IS_HELD, load_holds
from controlplane.queries.jobs.dependencies import DependencyFacts, load_dependencies
from controlplane.queries.jobs.filters import JobFilter, conditions_of
from controlplane.queries.schedules import find_instants
from controlplane.queries.sql import Row, decoded, named_rows, rows, scalar

# Lists omit larger specs: a thousand jobs of 4 MiB would be a response of 4 GB.
LISTED_SPEC_BYTES = 4_096

# Iteration over an enumeration is slow, and there are up to 1,000 groups.
_NAMES = tuple((int(state), state.name) for state in TaskState)


_COLUMNS = f"""
j.id, j.guid, j.name, u.username AS owner, d.name AS domain, p.name AS project,
pool.name AS pool, j.band, j.kind,
j.state, j.ending_as, j.failure_reason, j.min_available, j.max_task_failures, j.labels,
j.annotation, j.created_at, j.started_at, j.finished_at, j.settled_at, j.coscheduled,
j.is_requeuing AS requeuing,
j.queue_rank, j.finished_at IS NULL AND {IS_HELD} AS holds,
(SELECT o.id FROM controlplane_job o WHERE o.id = j.parent_id AND o.deleted_at IS NULL)
    AS parent,
(SELECT o.id FROM controlplane_job o WHERE o.id = j.retry_of_id AND o.deleted_at IS NULL)
    AS retry_of,
CASE WHEN j.is_watched THEN (SELECT count(*) FROM controlplane_job o
                             WHERE o.parent_id = j.id AND o.deleted_at IS NULL) ELSE 0 END
    AS children
"""
_TABLES = """
FROM controlplane_job j
JOIN controlplane_project p ON p.id = j.project_id
JOIN controlplane_domain d ON d.id = p.domain_id
JOIN controlplane_pool pool ON pool.id = j.pool_id
JOIN auth_user u ON u.id = j.owner_id
"""


def list_jobs(wanted: JobFilter, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` jobs older than the job `before`, newest first."""
    conditions, parameters = conditions_of(wanted)
    conditions.append("j.deleted_at IS NULL")
    if before is not None:
        conditions.append("j.id < %s")
        parameters.append(before)
    found = named_rows(
        f"""
        SELECT {_COLUMNS},
               CASE WHEN pg_column_size(j.spec) <= {LISTED_SPEC_BYTES} THEN j.spec END AS spec
        {_TABLES} WHERE {" AND ".join(conditions)} ORDER BY j.id DESC LIMIT %s
        """,
        [*parameters, limit],
    )
    return _documents(found, largest=LISTED_SPEC_BYTES)


def get_job(job_id: int, *, though_deleted: bool = False) -> dict[str, Any]:
    """Return one job. Raise NotFound."""
    jobs = load_jobs([job_id], though_deleted=though_deleted)
    if not jobs:
        raise NotFound(f"there is no job {job_id}")
    return jobs[0]


def load_jobs(job_ids: Sequence[int], *, though_deleted: bool = False) -> list[dict[str, Any]]:
    """Return the jobs `job_ids` with their whole specs, in that order, without unknown ones."""
    found = named_rows(
        f"SELECT {_COLUMNS}, j.spec {_TABLES} WHERE j.id = ANY(%s)"
        " AND (%s OR j.deleted_at IS NULL)",
        [list(job_ids), though_deleted],
        prepare=True,
    )
    jobs = {job["id"]: job for job in _documents(found)}
    return [jobs[job_id] for job_id in job_ids if job_id in jobs]


def is_job(job_id: int) -> bool:
    """Return whether the job exists and is not deleted."""
    return Job.objects.visible().filter(pk=job_id).exists()


def _documents(found: Sequence[Row], *, largest: int | None = None) -> list[dict[str, Any]]:
    job_ids = [row.id for row in found]
    groups, waits = _load_groups(job_ids, largest), load_dependencies(job_ids)
    held = [row.id for row in found if row.holds]
    holds = load_holds(held) if held else {}
    instants = find_instants((row.id, row.guid, decoded(row.labels)) for row in found)
    return [
        _document(row, groups.get(row.id, ()), [_wait(item) for item in waits.get(row.id, ())])
        | {
            "holds": [hold.as_document() for hold in holds.get(row.id, ())],
            "schedule": instants.get(row.id),
        }
        for row in found
    ]


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of a job: its document with the effective values, and its counts."""

    shown: dict[str, Any]
    counts: Sequence[int]
    trace: str | None


def _load_groups(job_ids: Sequence[int], largest: int | None) -> dict[int, list[_Group]]:
    found = named_rows(
        """
        SELECT job_id, counts, name, task_count AS tasks, min_available,
               launch ->> 'network' AS network, launch ->> 'trace' AS trace,
               CASE WHEN %s::int IS NULL OR pg_column_size(prepared) <= %s THEN prepared END
                   AS prepared
        FROM controlplane_taskgroup WHERE job_id = ANY(%s) ORDER BY job_id, position
        """,
        [largest, largest, list(job_ids)],
        prepare=True,
    )
    groups: dict[int, list[_Group]] = {}
    for row in found:
        shown = row._asdict() | {"prepared": decoded(row.prepared)}
        del shown["job_id"], shown["counts"], shown["trace"]
        groups.setdefault(row.job_id, []).append(_Group(shown, row.counts, row.trace))
    return groups


def load_status_counts(job_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the number of tasks by state, by job and group (Volcano's taskStatusCount)."""
    found = rows(
        """
        SELECT job_id, name, counts FROM controlplane_taskgroup
        WHERE job_id = ANY(%s) ORDER BY job_id, position
        """,
        [list(job_ids)],
    )
    counts: dict[int, dict[str, Any]] = {}
    for job_id, name, numbers in found:
        counts.setdefault(job_id, {})[name] = _status_count(numbers)
    return counts


def _status_count(counts: Sequence[int]) -> dict[str, Any]:
    return {"phase": {name: counts[number] for number, name in _NAMES if counts[number]}}


def _wait(item: DependencyFacts) -> dict[str, Any]:
    state = "met" if item.is_met else "failed" if item.is_failed else "open"
    return {"job": item.on_job_id, "name": item.name, "until": item.until, "state": state}


def find_job_trace(job_id: int) -> dict[str, Any] | None:
    """Return the id and the address of the job's trace; None if it has none."""
    return describe_trace(
        scalar(
            "SELECT launch ->> 'trace' FROM controlplane_taskgroup WHERE job_id = %s"
            " ORDER BY position LIMIT 1",
            [job_id],
        )
    )


def describe_trace(trace: str | None) -> dict[str, Any] | None:
    """Return the API document of the trace of a group."""
    if not trace:
        return None
    trace_id, _ = read_trace(trace)
    url = settings.CELLRUN.trace_url.replace("{trace_id}", trace_id)
    return {"id": trace_id, "url": url or None}


def _document(
    row: Row, groups: Sequence[_Group], waits_for: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        **row._asdict(),
        "band": name_band(row.band),
        "state": TaskState(row.state).name,
        "ending_as": None if row.ending_as is None else TaskState(row.ending_as).name,
        "task_status_count": {group.shown["name"]: _status_count(group.counts) for group in groups},
        "groups": [group.shown for group in groups],
        "waits_for": waits_for,
        "trace": describe_trace(next((group.trace for group in groups), None)),
        "labels": decoded(row.labels),
        "spec": decoded(row.spec),
    }
