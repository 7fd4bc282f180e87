"""Load tasks for the API and the admin, with their current attempt or pending reason."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.cache.policy import CacheStatus
from controlplane.domain.callbacks.delivery import nanoseconds_of
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.errors import NotFound
from controlplane.domain.jobs.one_offs import Lifecycle, lifecycle_of
from controlplane.domain.placement.reasons.explain import Reason
from controlplane.domain.state.states import ACTIVE, TERMINAL
from controlplane.models import Task
from controlplane.queries.cache.entries import RESULT_COLUMNS
from controlplane.queries.sql import Row, first_row, named_rows, scalar
from controlplane.queries.views.amounts import shown_text
from controlplane.queries.views.jobs import is_job
from controlplane.queries.views.pending import TASK_COLUMNS, TASK_JOINS, explain_tasks
from controlplane.queries.work_counts import WAITS

_COLUMNS = f"""
SELECT t.id, g.name AS "group", t.index, t.state, t.attempt_number, t.attempt_uid,
       t.failure_reason, t.failure_count, t.preemption_count, t.system_failure_count,
       t.updated_at, t.started_at, t.finished_at, j.annotation, j.created_at, a.stop_reason,
       a.failure_kind, a.retry_rule, COALESCE(t.resources, g.resources)::text AS resources,
       t.cache_key, e.job_id AS origin_job, e.task_id AS origin_task,
       e.attempt_uid AS origin_attempt, e.is_shared AS origin_shared, {RESULT_COLUMNS},
       o.guid, o.domain, o.claimed_at, o.claim_ended_at, {TASK_COLUMNS}
FROM controlplane_task t
JOIN controlplane_taskgroup g ON g.id = t.group_id
JOIN controlplane_job j ON j.id = t.job_id
LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid
LEFT JOIN controlplane_cell c ON c.id = a.cell_id
LEFT JOIN controlplane_oneoff o ON o.task_id = t.id
LEFT JOIN controlplane_cacheentry e ON e.id = t.cache_entry_id
{TASK_JOINS}
"""
MAX_ID = (1 << 63) - 1
FEW_PENDING = 10_000
"""With more pending tasks, a page of them is found soon among the newest tasks."""

# A claim expires after this time, even before convergence clears it.
_CLAIM = timedelta(seconds=Policy().claim_seconds)


def list_tasks(
    job_id: int,
    *,
    states: Sequence[TaskState] = (),
    group: str | None = None,
    index: int | None = None,
    after: int | None,
    limit: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return at most `limit` tasks of a job after `after`, by group and index. Raise NotFound."""
    found = named_rows(
        f"""
        {_COLUMNS} WHERE t.job_id = %(job_id)s AND t.id > %(after)s
          AND (%(all)s OR t.state = ANY(%(states)s))
          AND (%(group)s::text IS NULL OR g.name = %(group)s)
          AND (%(index)s::bigint IS NULL OR t.index = %(index)s)
          AND j.deleted_at IS NULL
        ORDER BY t.id LIMIT %(limit)s
        """,
        {
            "job_id": job_id,
            "after": after or 0,
            "all": not states,
            "states": [int(state) for state in states],
            "group": group,
            "index": index,
            "limit": limit,
        },
    )
    if not found and not is_job(job_id):
        raise NotFound(f"there is no job {job_id}")
    return _documents(found, now)


_OF_JOBS = f"""
{_COLUMNS} WHERE t.id = ANY(ARRAY(
    SELECT found.id FROM (
        SELECT id FROM controlplane_job
        WHERE id = ANY(%(jobs)s) AND id <= %(job)s AND deleted_at IS NULL
          AND (%(every)s OR project_id = ANY(%(readable)s))
        ORDER BY id DESC
    ) j CROSS JOIN LATERAL (
        SELECT t.id, t.job_id FROM controlplane_task t
        WHERE t.job_id = j.id AND (j.id < %(job)s OR t.id > %(task)s)
          AND (%(all)s OR t.state = ANY(%(states)s))
        ORDER BY t.id LIMIT %(limit)s
    ) found ORDER BY found.job_id DESC, found.id LIMIT %(limit)s
)) ORDER BY t.job_id DESC, t.id
"""


def list_tasks_of_jobs(
    job_ids: Collection[int],
    *,
    readable: Collection[int] | None,
    states: Sequence[TaskState] = (),
    after: tuple[int, int] | None,
    limit: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """Return at most `limit` tasks of jobs: the newest job first, its tasks by group and index.

    Jobs that do not exist or that the caller may not read have none. `after`: the job and the id
    of the last task before the page.
    """
    job, task = after or (MAX_ID, 0)
    found = named_rows(
        _OF_JOBS,
        {
            "jobs": sorted(job_ids),
            "job": job,
            "task": task,
            "every": readable is None,
            "readable": sorted(readable or ()),
            "all": not states,
            "states": [int(state) for state in states],
            "limit": limit,
        },
    )
    return _documents(found, now)


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Filters of listed tasks; None or empty does not filter. `domain`: of one-off tasks.

    `cell`: of the task's current or last attempt. `readable`: ids of the projects whose tasks the
    caller may read; None: all.
    """

    domain: str | None = None
    cell: str | None = None
    states: Sequence[TaskState] = ()
    lifecycles: Sequence[Lifecycle] = ()
    readable: Collection[int] | None = None


def find_tasks(
    wanted: TaskFilter, *, before: int | None, limit: int, now: datetime
) -> list[dict[str, Any]]:
    """Return at most `limit` tasks of any job older than task `before`, newest first."""
    resolving = Lifecycle.RESOLVING in wanted.lifecycles
    cell_id = None
    if wanted.cell is not None:
        cell_id = scalar("SELECT id FROM controlplane_cell WHERE name = %s", [wanted.cell])
        if cell_id is None:
            return []
    # States that only one-off tasks have are found by their own index, and states that need an open
    # attempt among such attempts.
    among = wanted.domain is not None or set(wanted.lifecycles) == {Lifecycle.RESOLVING}
    only = ""
    if _states_of(wanted) <= ACTIVE:
        only = "JOIN controlplane_attempt n ON n.task_id = t.id AND n.released_at IS NULL"
    elif _states_of(wanted) == {TaskState.PENDING} and _are_few_pending():
        only = f"JOIN ({_PENDING}) n ON n.id = t.id"
    found = named_rows(
        f"""
        {_COLUMNS} WHERE t.id = ANY(ARRAY(
            SELECT t.id FROM controlplane_task t {only}
            {"JOIN" if among else "LEFT JOIN"} controlplane_oneoff o ON o.task_id = t.id
            WHERE t.id < %(before)s AND {" AND ".join(_conditions(wanted))}
            ORDER BY t.id DESC LIMIT %(limit)s
        )) ORDER BY t.id DESC
        """,
        {
            "before": before or MAX_ID,
            "limit": limit,
            "domain": wanted.domain,
            "cell_id": cell_id,
            "states": [int(state) for state in wanted.states],
            "lives": [int(s) for s in TaskState if lifecycle_of(s) in wanted.lifecycles],
            "resolving": resolving,
            "over": now - _CLAIM,
            "readable": sorted(wanted.readable or ()),
        },
    )
    return _documents(found, now)


# By the indexes of waiting tasks and of unreleased attempts.
_PENDING = f"""
    SELECT t.id FROM controlplane_task t WHERE {WAITS}
    UNION ALL
    SELECT t.id FROM controlplane_attempt a JOIN controlplane_task t ON t.id = a.task_id
    WHERE a.released_at IS NULL AND t.state = {TaskState.PENDING:d}
    """


def _are_few_pending() -> bool:
    """Return whether the pending tasks are found faster among themselves than among all tasks."""
    statement = f"SELECT count(*) FROM (SELECT FROM controlplane_task t WHERE {WAITS} LIMIT %s) t"
    return bool(scalar(statement, [FEW_PENDING + 1]) <= FEW_PENDING)


def _states_of(wanted: TaskFilter) -> frozenset[TaskState]:
    """Return the states of the requested tasks."""
    lives = frozenset(
        state
        for state in TaskState
        if not wanted.lifecycles
        or lifecycle_of(state) in wanted.lifecycles
        or (state in TERMINAL and Lifecycle.RESOLVING in wanted.lifecycles)
    )
    return lives & frozenset(wanted.states or TaskState)


def _conditions(wanted: TaskFilter) -> Iterator[str]:
    """Yield the SQL of the filters, which exclude deleted jobs."""
    in_project = "" if wanted.readable is None else "AND j.project_id = ANY(%(readable)s)"
    yield (
        "EXISTS (SELECT FROM controlplane_job j"
        f" WHERE j.id = t.job_id AND j.deleted_at IS NULL {in_project})"
    )
    if wanted.domain is not None:
        yield "o.domain = %(domain)s"
    if wanted.states:
        yield "t.state = ANY(%(states)s)"
    if wanted.lifecycles:
        yield (
            "CASE WHEN o.claimed_at > %(over)s THEN %(resolving)s ELSE t.state = ANY(%(lives)s) END"
        )
        if set(wanted.lifecycles) == {Lifecycle.RESOLVING}:
            yield "o.claim IS NOT NULL"
    if wanted.cell is not None:
        yield (
            f"t.state <> {TaskState.PENDING:d} AND EXISTS (SELECT FROM controlplane_attempt a"
            " WHERE a.uid = t.attempt_uid AND a.cell_id = %(cell_id)s)"
        )


def get_task(task_id: int, *, now: datetime) -> dict[str, Any]:
    """Return one task. Raise NotFound."""
    return _documents([_find(task_id)], now)[0]


def get_task_with_reasons(task_id: int, *, now: datetime) -> tuple[dict[str, Any], list[Reason]]:
    """Return one task, and all its pending reasons. Raise NotFound."""
    return _explained([_find(task_id)], now)[0]


def _find(task_id: int) -> Row:
    task = first_row(f"{_COLUMNS} WHERE t.id = %s AND j.deleted_at IS NULL", [task_id])
    if task is None:
        raise NotFound(f"there is no task {task_id}")
    return task


def is_task(task_id: int) -> bool:
    """Return whether the task exists and its job is not deleted."""
    return Task.objects.visible().filter(pk=task_id).exists()


def name_tasks(task_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return {"task", "name", "job", "cell"} of each task, by id."""
    found = named_rows(
        """
        SELECT t.id AS task, g.name || '.' || t.index AS name, t.job_id AS job, c.name AS cell
        FROM controlplane_task t
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid
        LEFT JOIN controlplane_cell c ON c.id = a.cell_id
        WHERE t.id = ANY(%s) ORDER BY t.id
        """,
        [list(task_ids)],
    )
    return [row._asdict() for row in found]


def _documents(tasks: Sequence[Row], now: datetime) -> list[dict[str, Any]]:
    return [document for document, _ in _explained(tasks, now)]


def _explained(tasks: Sequence[Row], now: datetime) -> list[tuple[dict[str, Any], list[Reason]]]:
    """Return each task with all its pending reasons."""
    pending = [task for task in tasks if task.state == TaskState.PENDING]
    explained = explain_tasks(pending, now=now)
    reasons = [explained.get(task.id, []) for task in tasks]
    documents = (_document(task, why, now) for task, why in zip(tasks, reasons, strict=True))
    return list(zip(documents, reasons, strict=True))


def _origin(task: Row) -> dict[str, Any] | None:
    if task.origin_attempt is None:
        return None
    return {
        "job": task.origin_job,
        "task": task.origin_task,
        "attempt_uid": task.origin_attempt,
        "shared": task.origin_shared,
    }


def _document(task: Row, reasons: Sequence[Reason], now: datetime) -> dict[str, Any]:
    state = TaskState(task.state)
    ended, succeeded = state in TERMINAL, state is TaskState.SUCCEEDED
    waits = state is TaskState.PENDING
    is_resolving = task.claimed_at is not None and task.claimed_at > now - _CLAIM
    updated_at = _updated_at(task, is_resolving=is_resolving)
    return {
        "id": task.id,
        "guid": task.guid or str(task.id),
        "domain": task.domain,
        "job": task.job,
        "group": task.group,
        "index": task.index,
        "state": state.name,
        "state_number": int(state),
        "lifecycle": Lifecycle.RESOLVING if is_resolving else lifecycle_of(state),
        "stopping": bool(task.attempt_open and task.stop_reason),
        "pending_reason": reasons[0] if reasons else None,
        "not_before": task.not_before if waits else None,
        "attempt_number": task.attempt_number,
        "attempt_uid": task.attempt_uid,
        "cell_id": None if waits else task.cell_id,
        "failed": ended and not succeeded,
        "failure_reason": task.failure_reason,
        "failure_kind": (task.failure_kind or None) if ended and not succeeded else None,
        "exit_code": task.exit_code if ended else None,
        "retry_rule": task.retry_rule,
        "resources": shown_text(task.resources),
        "result": task.result if succeeded else None,
        "result_truncated": bool(succeeded and task.result_truncated),
        "annotation": task.annotation,
        "failure_count": task.failure_count,
        "preemption_count": task.preemption_count,
        "system_failure_count": task.system_failure_count,
        "cache_status": CacheStatus(task.cache_status).name,
        "cache_key": task.cache_key,
        "cache_origin": _origin(task),
        "created_at": task.created_at,
        "created_at_ns": nanoseconds_of(task.created_at),
        "updated_at": updated_at,
        "updated_at_ns": nanoseconds_of(updated_at),
        "first_completed_at": task.finished_at,
        "first_completed_at_ns": nanoseconds_of(task.finished_at),
        "started_at": task.started_at,
        "finished_at": task.finished_at,
    }


def _updated_at(task: Row, *, is_resolving: bool) -> datetime:
    """Return when the task or its lifecycle last changed; RESOLVING changes only the one-off row.

    An expired claim ended at its expiry, even before convergence clears it.
    """
    claimed_at = task.claimed_at
    if claimed_at is not None and not is_resolving:
        claimed_at += _CLAIM
    changes = (task.updated_at, task.claim_ended_at, claimed_at)
    return max(at for at in changes if at is not None)
