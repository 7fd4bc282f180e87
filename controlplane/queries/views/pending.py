"""Load the pending reasons of tasks and groups, for the API, the client and the admin."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import CacheStatus as C
from controlplane.domain.holds import OpenHold
from controlplane.domain.placement.reasons.explain import Reason
from controlplane.domain.placement.reasons.pending import (
    CacheWait,
    PendingTaskFacts,
    pending_reasons,
)
from controlplane.queries.holds import IS_HELD, load_holds
from controlplane.queries.jobs.dependencies import load_dependencies
from controlplane.queries.placement.concurrency import load_key_jobs
from controlplane.queries.sql import Row, decoded, named_rows

_SHARED = f"""g.startable_at, g.depends_on, j.id AS job, j.waits_for_jobs, j.is_requeuing,
j.start_after, {IS_HELD} AS is_held,
CASE WHEN s.pending_reason IS NULL THEN g.pending_reason ELSE s.pending_reason END AS found,
i.image AS held_image, (s.concurrency ->> 'id')::bigint AS key_id"""

TASK_COLUMNS = f"""t.not_before, t.attempt_open, t.cache_status, t.cache_blocked,
r.job_id AS cache_job, r.reserved_at AS cache_since,
CASE WHEN t.not_before IS NOT NULL THEN (
    SELECT e.retry_rule FROM controlplane_attempt e WHERE e.uid = t.attempt_uid
) END AS retried_by, {_SHARED}"""
"""What `explain_tasks` reads, of a task t, its group g and its job j, beside TASK_JOINS."""

TASK_JOINS = """
LEFT JOIN controlplane_shape s ON s.id = t.shape_id
LEFT JOIN LATERAL (
    SELECT image FROM controlplane_imagefailure f
    WHERE t.not_before IS NOT NULL AND f.held_until = t.not_before
      AND f.image = g.launch ->> 'image' LIMIT 1
) i ON true
LEFT JOIN LATERAL (
    SELECT o.job_id, v.reserved_at FROM controlplane_cachereservation v
    JOIN controlplane_task o ON o.id = v.task_id
    WHERE t.cache_blocked AND v.identity = t.cache_identity
) r ON true
"""

_TASKS = f"""
SELECT t.id, {TASK_COLUMNS}
FROM controlplane_task t
JOIN controlplane_taskgroup g ON g.id = t.group_id
JOIN controlplane_job j ON j.id = t.job_id
{TASK_JOINS}
WHERE t.id = ANY(%s) AND t.state = {S.PENDING:d}
"""
# Of a group only reasons for all its tasks, such as a held image, but no other wait. Tasks whose
# request a retry rule increased have another shape: that of the first waiting task counts.
_GROUPS = f"""
SELECT g.id, i.held_until AS not_before, false AS attempt_open, {C.DISABLED:d} AS cache_status,
       false AS cache_blocked, NULL::bigint AS cache_job, NULL::timestamptz AS cache_since,
       NULL::smallint AS retried_by, {_SHARED}
FROM controlplane_taskgroup g
JOIN controlplane_job j ON j.id = g.job_id
LEFT JOIN controlplane_shape s ON s.id = CASE WHEN g.retry_rules IS NULL THEN g.shape_id ELSE
    COALESCE((SELECT t.shape_id FROM controlplane_task t
              WHERE t.group_id = g.id AND t.state = {S.PENDING:d} ORDER BY t.index LIMIT 1),
             g.shape_id) END
LEFT JOIN LATERAL (
    SELECT image, held_until FROM controlplane_imagefailure f
    WHERE f.held_until IS NOT NULL AND f.image = g.launch ->> 'image' LIMIT 1
) i ON true
WHERE g.id = ANY(%s)
"""


def load_task_reasons(task_ids: Iterable[int], *, now: datetime) -> dict[int, list[Reason]]:
    """Return all pending reasons of each pending task, the nearest first."""
    return _load(_TASKS, task_ids, now)


def load_group_reasons(group_ids: Iterable[int], *, now: datetime) -> dict[int, list[Reason]]:
    """Return all pending reasons of groups, without those of single tasks."""
    return _load(_GROUPS, group_ids, now)


def explain_tasks(waiting: Sequence[Row], *, now: datetime) -> dict[int, list[Reason]]:
    """Return by id all pending reasons of tasks or groups, given as rows of the columns above."""
    waits = _load_waits({row.job for row in waiting if row.waits_for_jobs})
    held = {row.job for row in waiting if row.is_held}
    holds = load_holds(held) if held else {}
    keys = load_key_jobs(row.key_id for row in waiting if row.key_id is not None and row.found)
    return {
        row.id: pending_reasons(
            _waiting(row, waits.get(row.job, ()), holds.get(row.job, ()), keys.get(row.key_id, ())),
            now=now,
        )
        for row in waiting
    }


def _load(statement: str, ids: Iterable[int], now: datetime) -> dict[int, list[Reason]]:
    wanted = sorted(set(ids))
    return explain_tasks(named_rows(statement, [wanted]) if wanted else [], now=now)


def _load_waits(job_ids: set[int]) -> dict[int, list[dict[str, Any]]]:
    """Return the open dependencies of jobs: {"job", "name", "until"}."""
    found = load_dependencies(sorted(job_ids)) if job_ids else {}
    return {
        job_id: [
            {"job": item.on_job_id, "name": item.name, "until": item.until}
            for item in waits
            if not item.is_met
        ]
        for job_id, waits in found.items()
    }


def _waiting(
    row: Row,
    waits_for: Sequence[Mapping[str, Any]],
    holds: Sequence[OpenHold],
    key_jobs: Sequence[tuple[int, int]],
) -> PendingTaskFacts:
    return PendingTaskFacts(
        not_before=row.not_before,
        attempt_open=row.attempt_open,
        startable_at=row.startable_at,
        depends_on=decoded(row.depends_on),
        found=decoded(row.found),
        waits_for=waits_for,
        is_requeuing=row.is_requeuing,
        start_after=row.start_after,
        held_image=row.held_image,
        retry_rule=row.retried_by,
        cache=_cache_wait(row),
        holds=holds,
        key_jobs=key_jobs,
    )


def _cache_wait(row: Row) -> CacheWait | None:
    if not row.cache_blocked:
        return None
    return CacheWait(row.cache_status == C.LOOKUP, row.cache_job, row.cache_since)
