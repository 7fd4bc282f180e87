"""Load callbacks: due ones, their contents, and the results of their tries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.errors import NotFound
from controlplane.queries.cache.entries import RESULT_COLUMNS
from controlplane.queries.sql import Row, decoded, first_row, named_rows, rows, scalar
from controlplane.queries.views.jobs import is_job, load_status_counts

# The number of latest tries in the document of a callback.
SHOWN_TRIES = 5

# The hosts that one claim reads of each owner with due callbacks: by name, after those of the last
# claim, and the hosts of the most overdue callbacks.
_HOSTS_AT_ONCE = 64
_OLDEST = 256

# Go from owner to owner by the index: the cost does not depend on the number of callbacks.
_OWNERS = """
owners AS (
    (SELECT owner_id FROM controlplane_callback WHERE state = 'waiting' ORDER BY owner_id LIMIT 1)
    UNION ALL
    SELECT (SELECT k.owner_id FROM controlplane_callback k
            WHERE k.state = 'waiting' AND k.owner_id > o.owner_id ORDER BY k.owner_id LIMIT 1)
    FROM owners o WHERE o.owner_id IS NOT NULL
), late AS MATERIALIZED (
    SELECT o.owner_id FROM owners o WHERE EXISTS (
        SELECT 1 FROM controlplane_callback k
        WHERE k.state = 'waiting' AND k.owner_id = o.owner_id AND k.due_at <= %(now)s)
)
"""

_TASK_COLUMNS = f"""
SELECT k.id AS callback, t.id AS task, t.job_id AS job, g.name AS "group", t.index, t.state,
       t.failure_reason, {RESULT_COLUMNS},
       t.started_at, t.finished_at, j.annotation, j.created_at, j.is_one_off, o.guid
FROM controlplane_callback k
JOIN controlplane_task t ON t.id = k.task_id
JOIN controlplane_taskgroup g ON g.id = t.group_id
JOIN controlplane_job j ON j.id = t.job_id
LEFT JOIN controlplane_oneoff o ON o.task_id = t.id
LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid
LEFT JOIN controlplane_cell c ON c.id = a.cell_id
LEFT JOIN controlplane_cacheentry e ON e.id = t.cache_entry_id
WHERE k.id = ANY(%s)
"""
_JOB_COLUMNS = """
SELECT k.id AS callback, j.id AS job, j.guid, j.name, j.state, j.failure_reason, j.annotation,
       j.labels, j.created_at, j.started_at, j.finished_at, j.settled_at
FROM controlplane_callback k JOIN controlplane_job j ON j.id = k.job_id
WHERE k.id = ANY(%s) AND k.task_id IS NULL
"""
_COLUMNS = """
SELECT k.id, k.job_id AS job, k.task_id AS task, k.url, k.state, k.tries, k.due_at, k.give_up_at,
       k.created_at, k.ended_at, k.last_error
FROM controlplane_callback k JOIN controlplane_job j ON j.id = k.job_id AND j.deleted_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class CallbackSubjects:
    """The subjects of callbacks by id: facts for the bodies of `domain.callbacks.delivery`."""

    tasks: dict[int, dict[str, Any]]
    jobs: dict[int, dict[str, Any]]


def is_any_due(now: datetime) -> bool:
    """Return whether some callback is due."""
    statement = f"WITH RECURSIVE {_OWNERS} SELECT EXISTS (SELECT 1 FROM late)"
    return bool(scalar(statement, {"now": now}))


@dataclass(frozen=True, slots=True)
class Receivers:
    """Owners and hosts, in parallel lists, that may have due callbacks.

    `left_off`: the host after which there are more; empty if these were the last.
    """

    owner_ids: list[int]
    hosts: list[str]
    left_off: str


def find_receivers(now: datetime, *, behind: str) -> Receivers:
    """Return a bounded number of hosts with due callbacks per owner, after the host `behind`."""
    statement = f"""
        WITH RECURSIVE {_OWNERS}, walk AS (
            SELECT l.owner_id, 1 AS n, (
                SELECT k.host FROM controlplane_callback k
                WHERE k.state = 'waiting' AND k.owner_id = l.owner_id AND k.host > %(behind)s
                ORDER BY k.host LIMIT 1) AS host
            FROM late l
            UNION ALL
            SELECT w.owner_id, w.n + 1, (
                SELECT k.host FROM controlplane_callback k
                WHERE k.state = 'waiting' AND k.owner_id = w.owner_id AND k.host > w.host
                ORDER BY k.host LIMIT 1)
            FROM walk w WHERE w.host IS NOT NULL AND w.n < %(hosts)s
        ), found AS (
            SELECT owner_id, host FROM walk WHERE host IS NOT NULL
            UNION
            SELECT l.owner_id, o.host FROM late l, LATERAL (
                SELECT k.host FROM controlplane_callback k
                WHERE k.state = 'waiting' AND k.owner_id = l.owner_id AND k.due_at <= %(now)s
                ORDER BY k.due_at, k.id LIMIT %(oldest)s) o
        )
        SELECT owner_id, host, (SELECT min(host) FROM walk WHERE n = %(hosts)s) AS left_off
        FROM found
        """
    parameters = {"now": now, "behind": behind, "hosts": _HOSTS_AT_ONCE, "oldest": _OLDEST}
    found = named_rows(statement, parameters)
    left_off = (found[0].left_off or "") if found else ""
    return Receivers([row.owner_id for row in found], [row.host for row in found], left_off)


def list_waiting_hosts(limit: int) -> list[str]:
    """Return the first hosts with waiting callbacks, by name, at a cost per host."""
    statement = """
        WITH RECURSIVE hosts AS (
            (SELECT host FROM controlplane_callback WHERE state = 'waiting' ORDER BY host LIMIT 1)
            UNION ALL
            SELECT (SELECT k.host FROM controlplane_callback k
                    WHERE k.state = 'waiting' AND k.host > h.host ORDER BY k.host LIMIT 1)
            FROM hosts h WHERE h.host IS NOT NULL
        )
        SELECT host FROM hosts WHERE host IS NOT NULL LIMIT %s
        """
    return [host for (host,) in rows(statement, [limit])]


def load_subjects(callback_ids: Sequence[int]) -> CallbackSubjects:
    """Return the current subject of each callback; omit deleted ones."""
    tasks = [row._asdict() for row in named_rows(_TASK_COLUMNS, [list(callback_ids)])]
    jobs = [row._asdict() for row in named_rows(_JOB_COLUMNS, [list(callback_ids)])]
    counts = load_status_counts([job["job"] for job in jobs]) if jobs else {}
    for task in tasks:
        succeeded = task["state"] == TaskState.SUCCEEDED
        task["result"] = task["result"] if succeeded else None
        task["result_truncated"] = bool(succeeded and task["result_truncated"])
        task["guid"] = task["guid"] or str(task["task"])
        task["state"] = TaskState(task["state"]).name
    for job in jobs:
        job["labels"] = decoded(job["labels"])
        job["task_status_count"] = counts.get(job["job"], {})
        job["state"] = TaskState(job["state"]).name
    return CallbackSubjects(
        {task.pop("callback"): task for task in tasks},
        {job.pop("callback"): job for job in jobs},
    )


def list_callbacks(job_id: int, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` callbacks of a job, newest first, with their latest tries.

    Raise NotFound.
    """
    statement = f"{_COLUMNS} WHERE k.job_id = %s AND (%s OR k.id < %s) ORDER BY k.id DESC LIMIT %s"
    found = named_rows(statement, [job_id, before is None, before or 0, limit])
    if not found and not is_job(job_id):
        raise NotFound(f"there is no job {job_id}")
    return _with_tries(found)


def get_callback(callback_id: int) -> dict[str, Any]:
    """Return one callback with its latest tries. Raise NotFound."""
    row = first_row(f"{_COLUMNS} WHERE k.id = %s", [callback_id])
    if row is None:
        raise NotFound(f"there is no callback {callback_id}")
    return _with_tries([row])[0]


def _with_tries(callbacks: Sequence[Row]) -> list[dict[str, Any]]:
    found = named_rows(
        """
        SELECT d.callback_id, d.number, d.began_at, d.ended_at, d.status, d.error
        FROM unnest(%s::bigint[]) AS k(id), LATERAL (
            SELECT * FROM controlplane_delivery WHERE callback_id = k.id ORDER BY id DESC LIMIT %s
        ) d ORDER BY d.callback_id, d.id DESC
        """,
        [[callback.id for callback in callbacks], SHOWN_TRIES],
    )
    tries: dict[int, list[dict[str, Any]]] = {}
    for row in found:
        facts = row._asdict()
        tries.setdefault(facts.pop("callback_id"), []).append(facts)
    return [
        {**callback._asdict(), "deliveries": tries.get(callback.id, [])} for callback in callbacks
    ]
