"""Insert planned jobs: one statement per table for all jobs of a call."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from controlplane.commands.state.inserts import Columns, insert_rows
from controlplane.commands.state.shapes import insert_shapes
from controlplane.commands.traces import start_trace
from controlplane.contract.states import TaskState
from controlplane.domain.cache.policy import CacheStatus
from controlplane.domain.callbacks.addresses import receiver_of
from controlplane.domain.jobs.submission import (
    PlannedGroup,
    PlannedJob,
    band_of,
    concurrency_of,
    waits_for_jobs,
)
from controlplane.domain.placement.scheduling_key import ShapeKey
from controlplane.domain.state.states import Reason
from controlplane.queries.sql import array_literal, encoded, execute, rows


def insert_jobs(jobs: Sequence[PlannedJob], *, actor: str, now: datetime) -> set[int]:
    """Insert the jobs with their shapes, groups, tasks and history; return the inserted ids.

    Skip a job whose guid was taken meanwhile: the unique constraint decides.
    """
    for job, job_id in zip(jobs, _draw_ids("controlplane_job", len(jobs)), strict=True):
        job.job_id = job_id
    written = _insert_jobs(jobs, now)
    inserted = [job for job in jobs if job.job_id in written]
    groups = [
        (job.job_id, group, _traced(group.launch, trace))
        for job in inserted
        for trace in [start_trace()]
        for group in job.groups
    ]
    group_ids = _draw_ids("controlplane_taskgroup", len(groups))
    shape_ids = insert_shapes(
        [shape_key_of(job, group) for job in inserted for group in job.groups]
    )
    _insert_groups(groups, group_ids, shape_ids)
    _insert_tasks(groups, group_ids, shape_ids, now)
    _insert_history(sorted(written), actor, now)
    return written


_GroupRow = tuple[int, PlannedGroup, Mapping[str, Any]]
"""The id of the job, the group, and its launch with the trace of the job."""


def _traced(launch: Mapping[str, Any], trace: str) -> Mapping[str, Any]:
    """Return the launch with the trace of its job, and without that of a job that it retries."""
    if not trace and "trace" not in launch:
        return launch
    untraced = {name: value for name, value in launch.items() if name != "trace"}
    return untraced | ({"trace": trace} if trace else {})


def shape_key_of(job: PlannedJob, group: PlannedGroup) -> ShapeKey:
    """Return the key of the shape that the group's tasks share in placement."""
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
        concurrency=concurrency_of(job.spec, job.project_id),
    )


def key_id_of(job: PlannedJob) -> int | None:
    """Return the id of the concurrency key of a job; None: it has none."""
    rule = concurrency_of(job.spec, job.project_id)
    return None if rule is None else rule.key_id


def _draw_ids(table: str, count: int) -> list[int]:
    statement = "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)"
    return sorted(found for (found,) in rows(statement, [table, count], prepare=True))


def _insert_jobs(jobs: Sequence[PlannedJob], now: datetime) -> set[int]:
    specs, count = [job.spec for job in jobs], len(jobs)
    urls = [spec.callback.url or "" for spec in specs]
    columns: Columns = {
        "id": ("bigint", [job.job_id for job in jobs]),
        "guid": ("text", [spec.guid for spec in specs]),
        "project_id": ("bigint", [job.project_id for job in jobs]),
        "owner_id": ("bigint", [job.owner_id for job in jobs]),
        "pool_id": ("bigint", [job.pool_id for job in jobs]),
        "name": ("text", [spec.name for spec in specs]),
        "band": ("smallint", [int(band_of(spec)) for spec in specs]),
        "kind": ("text", [spec.kind for spec in specs]),
        "state": ("smallint", [int(TaskState.PENDING)] * count),
        "ending_reason": ("text", [""] * count),
        "ending_force": ("bool", [False] * count),
        "failure_reason": ("text", [""] * count),
        "min_available": ("int", [job.min_available for job in jobs]),
        "explicit_minimum": ("bool", [spec.has_explicit_minimum() for spec in specs]),
        "max_task_failures": ("int", [job.max_task_failures for job in jobs]),
        "has_dependencies": ("bool", [any(g.depends_on for g in job.groups) for job in jobs]),
        "scheduling_timeout_seconds": ("float8", [it.scheduling_timeout_seconds for it in specs]),
        "spec": ("jsonb", [job.text for job in jobs]),
        "spec_digest": ("text", [job.digest for job in jobs]),
        "labels": ("jsonb", [encoded(spec.labels) for spec in specs]),
        "annotation": ("text", [spec.annotation for spec in specs]),
        "start_after": ("timestamptz", [spec.start_after for spec in specs]),
        "created_at": ("timestamptz", [now] * count),
        "coscheduled": ("bool", [spec.coscheduled for spec in specs]),
        "group_by": ("text", [spec.group_by or "" for spec in specs]),
        "is_requeuing": ("bool", [False] * count),
        "concurrency_id": (
            "bigint",
            [key_id_of(job) for job in jobs],
        ),
        "waits_for_jobs": ("bool", [waits_for_jobs(spec) for spec in specs]),
        "is_watched": ("bool", [False] * count),
        "retry_of_id": ("bigint", [job.retry_of for job in jobs]),
        "ttl_seconds": ("int", [spec.ttl_seconds_after_finished for spec in specs]),
        "is_one_off": ("bool", [job.is_one_off for job in jobs]),
        "callback_on": ("text", [spec.callback.on if spec.callback.url else "" for spec in specs]),
        "callback_url": ("text", urls),
        "callback_host": ("text", [receiver_of(url) for url in urls]),
    }
    # In the order of guids, so that two calls with the same guids cannot deadlock.
    ending = """
        ORDER BY r.project_id, r.guid, r.id
        ON CONFLICT (project_id, guid) WHERE guid IS NOT NULL AND deleted_at IS NULL DO NOTHING
        RETURNING id
        """
    return {job_id for (job_id,) in insert_rows("controlplane_job", columns, ending)}


def _insert_groups(
    groups: Sequence[_GroupRow],
    group_ids: Sequence[int],
    shape_ids: Sequence[int],
) -> None:
    plain = [group for _, group, _ in groups]
    columns: Columns = {
        "id": ("bigint", group_ids),
        "job_id": ("bigint", [job_id for job_id, _, _ in groups]),
        "name": ("text", [group.name for group in plain]),
        "position": ("int", [group.position for group in plain]),
        "replicas": ("int", [group.replicas for group in plain]),
        "task_count": ("int", [len(group.indices) for group in plain]),
        "min_available": ("int", [group.min_available for group in plain]),
        "counts": ("int[]", [_counts_of(group) for group in plain]),
        "killed_by_dependency": ("int", [0] * len(plain)),
        "resources": ("jsonb", [encoded(group.resources) for group in plain]),
        "task_type": ("text", [group.task_type for group in plain]),
        "shape_id": ("bigint", shape_ids),
        "launch": ("jsonb", [encoded(launch) for _, _, launch in groups]),
        "depends_on": ("jsonb", [encoded(group.depends_on) for group in plain]),
        "retries_failure": ("int", [group.retries[0] for group in plain]),
        "retries_preemption": ("int", [group.retries[1] for group in plain]),
        "retries_system": ("int", [group.retries[2] for group in plain]),
        "retry_permanent": ("bool", [group.retry_permanent for group in plain]),
        "retry_rules": (
            "jsonb",
            [
                encoded([rule.as_dict() for rule in group.retry_rules])
                if group.retry_rules
                else None
                for group in plain
            ],
        ),
        "at_most_once": ("bool", [group.at_most_once for group in plain]),
        "exclusive": ("text", [group.exclusive.value for group in plain]),
        "timeout_seconds": ("float8", [group.timeout_seconds for group in plain]),
        "timeout_is_lifetime": ("bool", [group.timeout_is_lifetime for group in plain]),
        "startable_at": ("timestamptz", [group.startable_at for group in plain]),
        "deadline_at": ("timestamptz", [group.deadline_at for group in plain]),
        "cache": (
            "jsonb",
            [None if group.cache is None else encoded(group.cache.as_dict()) for group in plain],
        ),
        "prepared": ("jsonb", [encoded(group.prepared) for group in plain]),
    }
    insert_rows("controlplane_taskgroup", columns, "RETURNING id")


def _counts_of(group: PlannedGroup) -> str:
    counts = [0] * (max(TaskState) + 1)
    counts[TaskState.PENDING] = len(group.indices)
    return array_literal(counts)


# Ids ascend by group and index, the order in which tasks are listed.
_INSERT_TASKS = """
INSERT INTO controlplane_task (
    job_id, group_id, shape_id, index, state, attempt_number, attempt_open, failure_count,
    preemption_count, system_failure_count, system_row, refusal_row,
    consecutive_crashes, failure_reason, updated_at, cache_status, cache_blocked)
SELECT g.job_id, g.id, g.shape_id, i, %s, 0, false, 0, 0, 0, 0, 0, 0, '', %s, g.cache, g.cache > 0
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::int[], %s::int[], %s::int[])
     WITH ORDINALITY AS g (id, job_id, shape_id, first, last, cache, n)
CROSS JOIN LATERAL generate_series(g.first, g.last) AS i
ORDER BY g.n, i
"""


def _insert_tasks(
    groups: Sequence[_GroupRow],
    group_ids: Sequence[int],
    shape_ids: Sequence[int],
    now: datetime,
) -> None:
    runs = [
        (group_id, job_id, shape_id, first, last, _cache_status(group))
        for (job_id, group, _), group_id, shape_id in zip(groups, group_ids, shape_ids, strict=True)
        for first, last in _runs_of(group.indices)
    ]
    columns = [[run[place] for run in runs] for place in range(6)]
    execute(_INSERT_TASKS, [int(TaskState.PENDING), now, *columns], prepare=True)


def _cache_status(group: PlannedGroup) -> int:
    return int(CacheStatus.DISABLED if group.cache is None else CacheStatus.LOOKUP)


def _runs_of(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending indices as (first, last) of gapless runs."""
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
        [int(TaskState.PENDING), str(Reason.SUBMITTED), actor, now, list(job_ids)],
        prepare=True,
    )
