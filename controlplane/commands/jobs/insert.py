"""Writes submitted jobs: one statement per table for all jobs of a call."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.commands.jobs.scheduling_keys import insert_shapes
from controlplane.contract.states import TaskState
from controlplane.domain.callbacks.addresses import receiver_of
from controlplane.domain.jobs.submission import PlannedGroup, band_of
from controlplane.domain.placement.scheduling_key import ShapeKey
from controlplane.domain.state.states import Reason
from controlplane.queries.sql import execute, rows
from controlplane.spec import JobSpec


@dataclass(slots=True, eq=False)
class PlannedJob:
    """A job and its groups, ready to be written. `job_id` is drawn when it is."""

    position: int
    spec: JobSpec
    text: str
    digest: str
    project_id: int
    pool_id: int
    owner_id: int
    min_available: int
    max_task_failures: int
    waits_for_jobs: bool
    timeout_seconds: float | None
    groups: Sequence[PlannedGroup] = field(default_factory=list)
    retry_of: int | None = None
    is_one_off: bool = False
    job_id: int = 0


def insert_jobs(jobs: Sequence[PlannedJob], *, actor: str, now: datetime) -> set[int]:
    """Write the jobs with all that belongs to them; returns the ids of those that were written.

    A job whose guid was taken meanwhile is left out: the unique constraint decides.
    """
    for job, job_id in zip(jobs, _draw_ids("controlplane_job", len(jobs)), strict=True):
        job.job_id = job_id
    written = _insert_jobs(jobs, now)
    kept = [job for job in jobs if job.job_id in written]
    groups = [(job.job_id, group) for job in kept for group in job.groups]
    group_ids = _draw_ids("controlplane_taskgroup", len(groups))
    shape_ids = insert_shapes(
        [shape_key_of(job, group) for job in kept for group in job.groups],
    )
    _insert_groups(groups, group_ids, shape_ids)
    _insert_tasks(groups, group_ids, shape_ids, now)
    _insert_history(sorted(written), actor, now)
    return written


def shape_key_of(job: PlannedJob, group: PlannedGroup) -> ShapeKey:
    """What placement asks of a cell for the group."""
    return ShapeKey(
        pool_id=job.pool_id,
        band=band_of(job.spec),
        owner_id=job.owner_id,
        project_id=job.project_id,
        resources=group.resources,
        task_type=group.task_type,
        constraints=group.constraints,
        placement_tags=group.placement_tags,
        coscheduled=job.spec.coscheduled,
        allow_unsatisfiable=job.spec.allow_unsatisfiable,
    )


def _draw_ids(table: str, count: int) -> list[int]:
    statement = "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)"
    return sorted(found for (found,) in rows(statement, [table, count]))


# In the order of guids, so that two calls with the same guids wait for each other only one way.
_INSERT_JOBS = """
INSERT INTO controlplane_job (
    id, guid, project_id, owner_id, pool_id, name, band, kind, state, ending_reason, ending_force,
    failure_reason, min_available, explicit_minimum, max_task_failures, has_dependencies,
    coscheduled, group_by, is_bouncing, waits_for_jobs, is_watched, retry_of_id,
    scheduling_timeout_seconds, spec, spec_digest, labels, annotation, start_after, created_at,
    ttl_seconds, is_one_off, callback_on, callback_url, callback_host)
SELECT j.id, j.guid, j.project_id, j.owner_id, j.pool_id, j.name, j.band, j.kind, %(pending)s, '',
    false, '', j.min_available, j.explicit_minimum, j.max_task_failures, j.has_dependencies,
    j.coscheduled, j.group_by, false, j.waits_for_jobs, false, j.retry_of,
    j.timeout, j.spec::jsonb, j.digest, j.labels::jsonb, j.annotation, j.start_after, %(now)s,
    j.ttl, j.is_one_off, j.callback_on, j.callback_url,
    j.callback_host
FROM unnest(
    %(id)s::bigint[], %(guid)s::text[], %(project_id)s::bigint[], %(owner_id)s::bigint[],
    %(pool_id)s::bigint[], %(name)s::text[], %(band)s::smallint[], %(kind)s::text[],
    %(min_available)s::int[], %(explicit_minimum)s::bool[], %(max_task_failures)s::int[],
    %(has_dependencies)s::bool[], %(timeout)s::float8[], %(spec)s::text[], %(digest)s::text[],
    %(labels)s::text[], %(annotation)s::text[], %(start_after)s::timestamptz[],
    %(coscheduled)s::bool[], %(waits_for_jobs)s::bool[], %(retry_of)s::bigint[],
    %(group_by)s::text[], %(ttl)s::int[], %(is_one_off)s::bool[], %(callback_on)s::text[],
    %(callback_url)s::text[], %(callback_host)s::text[]
) AS j (id, guid, project_id, owner_id, pool_id, name, band, kind, min_available,
    explicit_minimum, max_task_failures, has_dependencies, timeout, spec, digest, labels,
    annotation, start_after, coscheduled, waits_for_jobs, retry_of, group_by, ttl, is_one_off,
    callback_on, callback_url, callback_host)
ORDER BY j.project_id, j.guid, j.id
ON CONFLICT (project_id, guid) WHERE guid IS NOT NULL AND deleted_at IS NULL DO NOTHING
RETURNING id
"""


def _insert_jobs(jobs: Sequence[PlannedJob], now: datetime) -> set[int]:
    specs = [job.spec for job in jobs]
    columns: dict[str, Any] = {
        "id": [job.job_id for job in jobs],
        "guid": [spec.guid for spec in specs],
        "project_id": [job.project_id for job in jobs],
        "owner_id": [job.owner_id for job in jobs],
        "pool_id": [job.pool_id for job in jobs],
        "name": [spec.name for spec in specs],
        "band": [int(band_of(spec)) for spec in specs],
        "kind": [spec.kind for spec in specs],
        "min_available": [job.min_available for job in jobs],
        "explicit_minimum": [spec.has_explicit_minimum() for spec in specs],
        "max_task_failures": [job.max_task_failures for job in jobs],
        "has_dependencies": [any(group.depends_on for group in job.groups) for job in jobs],
        "timeout": [job.timeout_seconds for job in jobs],
        "spec": [job.text for job in jobs],
        "digest": [job.digest for job in jobs],
        "labels": [json.dumps(spec.labels) for spec in specs],
        "annotation": [spec.annotation for spec in specs],
        "start_after": [spec.start_after for spec in specs],
        "coscheduled": [spec.coscheduled for spec in specs],
        "group_by": [spec.group_by or "" for spec in specs],
        "waits_for_jobs": [job.waits_for_jobs for job in jobs],
        "retry_of": [job.retry_of for job in jobs],
        "ttl": [spec.ttl_seconds_after_finished for spec in specs],
        "is_one_off": [job.is_one_off for job in jobs],
        "callback_on": [spec.callback.on if spec.callback.url else "" for spec in specs],
        "callback_url": [spec.callback.url or "" for spec in specs],
        "callback_host": [receiver_of(spec.callback.url or "") for spec in specs],
        "pending": int(TaskState.PENDING),
        "now": now,
    }
    return {job_id for (job_id,) in rows(_INSERT_JOBS, columns)}


_INSERT_GROUPS = """
INSERT INTO controlplane_taskgroup (
    id, job_id, name, position, replicas, task_count, min_available, counts, killed_by_dependency,
    resources, task_type, shape_id, launch, depends_on, retries_failure, retries_preemption,
    retries_system, retry_permanent, at_most_once, exclusive, timeout_seconds,
    timeout_is_lifetime, startable_at, deadline_at, prepared)
SELECT g.id, g.job_id, g.name, g.position, g.replicas, g.task_count, g.min_available,
    array_fill(0, ARRAY[%(pending)s]) || g.task_count || array_fill(0, ARRAY[%(others)s]),
    0, g.resources::jsonb, g.task_type, g.shape_id, g.launch::jsonb, g.depends_on::jsonb,
    g.failure, g.preemption, g.system, g.permanent, g.at_most_once, g.exclusive, g.timeout,
    g.is_lifetime, g.startable_at, g.deadline_at, g.prepared::jsonb
FROM unnest(
    %(id)s::bigint[], %(job_id)s::bigint[], %(name)s::text[], %(position)s::int[],
    %(replicas)s::int[], %(min_available)s::int[], %(resources)s::text[], %(task_type)s::text[],
    %(launch)s::text[], %(depends_on)s::text[], %(failure)s::int[], %(preemption)s::int[],
    %(system)s::int[], %(timeout)s::float8[], %(startable_at)s::timestamptz[],
    %(deadline_at)s::timestamptz[], %(task_count)s::int[], %(at_most_once)s::bool[],
    %(exclusive)s::text[], %(shape_id)s::bigint[], %(permanent)s::bool[], %(is_lifetime)s::bool[],
    %(prepared)s::text[]
) AS g (id, job_id, name, position, replicas, min_available, resources, task_type, launch,
    depends_on, failure, preemption, system, timeout, startable_at, deadline_at, task_count,
    at_most_once, exclusive, shape_id, permanent, is_lifetime, prepared)
"""


def _insert_groups(
    groups: Sequence[tuple[int, PlannedGroup]],
    group_ids: Sequence[int],
    shape_ids: Sequence[int],
) -> None:
    plain = [group for _, group in groups]
    columns: dict[str, Any] = {
        "id": list(group_ids),
        "job_id": [job_id for job_id, _ in groups],
        "name": [group.name for group in plain],
        "position": [group.position for group in plain],
        "replicas": [group.replicas for group in plain],
        "task_count": [len(group.indices) for group in plain],
        "at_most_once": [group.at_most_once for group in plain],
        "exclusive": [group.exclusive.value for group in plain],
        "min_available": [group.min_available for group in plain],
        "resources": [json.dumps(group.resources) for group in plain],
        "task_type": [group.task_type for group in plain],
        "shape_id": list(shape_ids),
        "launch": [json.dumps(group.launch) for group in plain],
        "depends_on": [json.dumps(group.depends_on) for group in plain],
        "failure": [group.retries[0] for group in plain],
        "preemption": [group.retries[1] for group in plain],
        "system": [group.retries[2] for group in plain],
        "permanent": [group.retry_permanent for group in plain],
        "timeout": [group.timeout_seconds for group in plain],
        "is_lifetime": [group.timeout_is_lifetime for group in plain],
        "startable_at": [group.startable_at for group in plain],
        "deadline_at": [group.deadline_at for group in plain],
        "prepared": [json.dumps(group.prepared) for group in plain],
        # `counts` begins at state 0 and ends at the highest.
        "pending": int(TaskState.PENDING),
        "others": int(max(TaskState) - TaskState.PENDING),
    }
    execute(_INSERT_GROUPS, columns)


# Ids grow with group and index: that is the order in which tasks are listed.
_INSERT_TASKS = """
INSERT INTO controlplane_task (
    job_id, group_id, shape_id, index, state, attempt_number, attempt_open, failure_count,
    preemption_count, system_failure_count, system_row, refusal_row,
    consecutive_crashes, failure_reason, updated_at)
SELECT g.job_id, g.id, g.shape_id, i, %s, 0, false, 0, 0, 0, 0, 0, 0, '', %s
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::int[], %s::int[])
     WITH ORDINALITY AS g (id, job_id, shape_id, first, last, n)
CROSS JOIN LATERAL generate_series(g.first, g.last) AS i
ORDER BY g.n, i
"""


def _insert_tasks(
    groups: Sequence[tuple[int, PlannedGroup]],
    group_ids: Sequence[int],
    shape_ids: Sequence[int],
    now: datetime,
) -> None:
    runs = [
        (group_id, job_id, shape_id, first, last)
        for (job_id, group), group_id, shape_id in zip(groups, group_ids, shape_ids, strict=True)
        for first, last in _runs_of(group.indices)
    ]
    columns = [[run[place] for run in runs] for place in range(5)]
    execute(_INSERT_TASKS, [int(TaskState.PENDING), now, *columns])


def _runs_of(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending indices as (first, last) of runs without a gap."""
    if isinstance(indices, range):
        return [(indices.start, indices.stop - 1)]
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs


def _insert_history(job_ids: Sequence[int], actor: str, now: datetime) -> None:
    execute(
        """
        INSERT INTO controlplane_transition (job_id, to_state, reason, message, actor, at)
        SELECT job_id, %s, %s, '', %s, %s FROM unnest(%s::bigint[]) AS job_id
        """,
        [int(TaskState.PENDING), str(Reason.SUBMITTED), actor[:100], now, list(job_ids)],
    )
