"""Load the history of a job, a task or an attempt, newest first, in pages."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.errors import NotFound
from controlplane.domain.timeline import Change, TimelineEntry, first_entries, measure
from controlplane.models import Task
from controlplane.queries.sql import first_row, rows
from controlplane.queries.views.jobs import is_job

# Rows of the first read for merged entries, which may cover many changes each. Each further read
# is four times as large, up to a third of a second, after which the page stays short.
_FIRST_READ = 1_000
_MOST_READ = 10_000


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Entries, newest first. `following`: `before` of the next page; None at the end."""

    entries: Sequence[TimelineEntry]
    following: int | None


@dataclass(frozen=True, slots=True)
class _HistoryScope:
    """The scope of a history: a condition on rows, and its task or attempt, if any."""

    where: str
    parameters: Mapping[str, Any]
    task_id: int | None = None
    submitted_with: int | None = None
    attempt: UUID | None = None


def find_job_history(
    job_id: int,
    *,
    before: int | None = None,
    limit: int,
    merged: bool = True,
    most_read: int | None = None,
) -> HistoryPage:
    """Return changes of a job and of all its tasks, older than `before`. Raise NotFound."""
    course = _HistoryScope("job_id = %(job)s", {"job": job_id})
    if not is_job(job_id):
        raise NotFound(f"there is no job {job_id}")
    return _part(course, before, limit, merged, most_read)


def find_history_without_tasks(job_id: int, *, before: int, limit: int) -> HistoryPage:
    """Return changes of a job itself, older than `before`."""
    course = _HistoryScope("job_id = %(job)s AND task_id IS NULL", {"job": job_id})
    return _part(course, before, limit, merged=True)


def find_task_history(
    task_id: int, *, before: int | None = None, limit: int, merged: bool = True
) -> HistoryPage:
    """Return changes of a task and its attempts, older than `before`. Raise NotFound.

    The first change is the submission, one row of the job for all tasks.
    """
    job_id = Task.objects.visible().filter(pk=task_id).values_list("job_id", flat=True).first()
    if job_id is None:
        raise NotFound(f"there is no task {task_id}")
    course = _HistoryScope(
        "task_id = %(task)s", {"task": task_id}, task_id=task_id, submitted_with=job_id
    )
    return _part(course, before, limit, merged)


def find_attempt_history(
    uid: UUID,
    *,
    before: int | None = None,
    limit: int,
    merged: bool = True,
    though_deleted: bool = False,
) -> HistoryPage:
    """Return changes of an attempt, older than `before`. Raise NotFound.

    `though_deleted`: also of a deleted job, for operators.
    """
    found = first_row(
        """
        SELECT a.task_id, min(h.id) AS first, max(h.id) AS last FROM controlplane_attempt a
        JOIN controlplane_job j ON j.id = a.job_id
        LEFT JOIN controlplane_transition h ON h.task_id = a.task_id AND h.attempt_uid = a.uid
        WHERE a.uid = %s AND (%s OR j.deleted_at IS NULL) GROUP BY a.task_id
        """,
        [uid, though_deleted],
    )
    if found is None:
        raise NotFound(f"there is no attempt {uid}")
    task_id, first, last = found
    if last is None:
        return HistoryPage((), None)
    # Other changes of its task are read for the durations of states, and then omitted.
    course = _HistoryScope(
        "task_id = %(task)s AND id >= %(first)s",
        {"task": task_id, "first": first},
        task_id=task_id,
        attempt=uid,
    )
    return _part(course, last + 1 if before is None else min(before, last + 1), limit, merged)


def change_document(entry: TimelineEntry) -> dict[str, Any]:
    """Return the API document of an entry. Values that differ between its changes are null."""
    newest = entry.newest
    return {
        "id": newest.id,
        "job": newest.job_id,
        "task": entry.shared(lambda change: change.task_id),
        "task_name": entry.shared(lambda change: change.task_name),
        "attempt_uid": entry.shared(lambda change: change.attempt_uid),
        "attempt_number": entry.shared(lambda change: change.attempt_number),
        "cell_id": entry.shared(lambda change: change.attempt_uid and change.cell),
        "from_state": _name(newest.from_state),
        "to_state": _name(newest.to_state),
        "attempt_state": _name(newest.attempt_state),
        "reason": newest.reason,
        "text": newest.sentence,
        "message": entry.message,
        "actor": entry.shown_actor,
        "actor_kind": newest.actor_kind,
        "at": entry.last_at,
        "first_at": entry.first_at,
        "last_at": entry.last_at,
        "count": entry.count,
        "tasks": entry.tasks,
        "seconds": entry.seconds,
        "longest_seconds": entry.longest_seconds,
        "still": entry.still,
    }


def _part(
    course: _HistoryScope,
    before: int | None,
    limit: int,
    merged: bool,
    most_read: int | None = None,
) -> HistoryPage:
    most_read = _MOST_READ if most_read is None else most_read
    size, start = _FIRST_READ if merged else limit + 1, _LATEST if before is None else before
    count, shown = 0, list[Change]()
    left: dict[int | None, datetime] = {}
    known: set[int | None] = set()
    while True:
        found = _read(course, start, size)
        is_all, count = len(found) < size, count + len(found)
        tasks = {change.task_id for change in found} - known
        known |= tasks
        if before is not None:
            left |= _left_at(course, before, tasks)
        shown += [
            change
            for change in measure(found, left)
            if course.attempt in (None, change.attempt_uid)
        ]
        entries = first_entries(shown, limit) if merged else _one_by_one(shown, limit)
        used = sum(entry.count for entry in entries)
        if used < len(shown):
            return HistoryPage(entries, shown[used - 1].id)
        if is_all or count >= most_read:
            return HistoryPage(entries, None if is_all else found[-1].id)
        size, start = min(size * 4, most_read - count), found[-1].id


def _one_by_one(changes: Sequence[Change], limit: int) -> list[TimelineEntry]:
    return [TimelineEntry((change,)) for change in changes[:limit]]


_LATEST = (1 << 63) - 1
_FIRST_STATE = Change._fields.index("from_state")
_STATE_COLUMNS = slice(_FIRST_STATE, _FIRST_STATE + 3)
_STATES: Mapping[int | None, TaskState | None] = MappingProxyType(
    {None: None, **{state.value: state for state in TaskState}}
)
_ENTERS = "to_state IS NOT NULL AND from_state IS DISTINCT FROM to_state"
# The first row of a job is its submission, also that of its tasks.
_SUBMISSION = """
UNION ALL SELECT * FROM (
    SELECT id, job_id, %(task)s::bigint, attempt_uid, from_state, to_state, attempt_state, reason,
           message, actor, at
    FROM controlplane_transition WHERE job_id = %(submitted_with)s ORDER BY id LIMIT 1
) first WHERE from_state IS NULL
"""


def _read(course: _HistoryScope, start: int, count: int) -> list[Change]:
    """Return the rows before `start`, newest first.

    A change of a job by a cell gets the attempt of the preceding report.
    """
    found = rows(
        f"""
        SELECT h.id, h.job_id, h.task_id, g.name || '.' || t.index AS task_name, h.attempt_uid,
               CASE WHEN h.attempt_uid IS NOT NULL THEN a.number END AS attempt_number,
               c.name AS cell, h.from_state, h.to_state, h.attempt_state, h.reason, h.message,
               h.actor, h.at
        FROM (
            SELECT * FROM (
                SELECT id, job_id, task_id, attempt_uid, from_state, to_state, attempt_state,
                       reason, message, actor, at
                FROM controlplane_transition WHERE {course.where}
                {"" if course.submitted_with is None else _SUBMISSION}
            ) every WHERE id < %(start)s ORDER BY id DESC LIMIT %(count)s
        ) h
        LEFT JOIN controlplane_task t ON t.id = h.task_id
        LEFT JOIN controlplane_taskgroup g ON g.id = t.group_id
        LEFT JOIN LATERAL (
            SELECT attempt_uid FROM controlplane_transition
            WHERE h.task_id IS NULL AND h.actor = 'cell' AND job_id = h.job_id AND id < h.id
            ORDER BY id DESC LIMIT 1
        ) caused ON true
        LEFT JOIN controlplane_attempt a ON a.uid = COALESCE(h.attempt_uid, caused.attempt_uid)
        LEFT JOIN controlplane_cell c ON c.id = a.cell_id
        ORDER BY h.id DESC
        """,
        {
            **course.parameters,
            "submitted_with": course.submitted_with,
            "start": start,
            "count": count,
        },
    )
    return [read_change(row) for row in found]


def _left_at(
    course: _HistoryScope, before: int, tasks: Collection[int | None]
) -> Mapping[int | None, datetime]:
    """Return when each task, and the job (None), left its newest state, by rows since `before`."""
    statement = f"""
        SELECT task_id, min(at) FROM controlplane_transition
        WHERE task_id = ANY(%s) AND id >= %s AND {_ENTERS} GROUP BY task_id
        """
    left = dict(rows(statement, [[task_id for task_id in tasks if task_id is not None], before]))
    if None in tasks:
        statement = f"""
            SELECT min(at) FROM controlplane_transition
            WHERE job_id = %s AND task_id IS NULL AND id >= %s AND {_ENTERS}
            """
        ((at,),) = rows(statement, [course.parameters["job"], before])
        left |= {} if at is None else {None: at}
    return left


def read_change(row: Sequence[Any]) -> Change:
    """Return the change of a row with the columns of Change, whose states are numbers."""
    states = (_STATES[number] for number in row[_STATE_COLUMNS])
    return Change(*row[: _STATE_COLUMNS.start], *states, *row[_STATE_COLUMNS.stop :])


def _name(state: TaskState | None) -> str | None:
    return None if state is None else state.name
