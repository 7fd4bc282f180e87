"""Load the rows for the checks of invariants, jobs page by page.

`load_repaired` loads what a recount checks: for most tasks only their number by state, so that the
locks of the jobs are held for some 20 ms. `load_jobs` loads all rows.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, TypeVar

from django.db import connection, transaction

from controlplane.contract.states import TaskState
from controlplane.domain.cache.policy import CacheStatus
from controlplane.domain.integrity import InvariantViolation, find_violations
from controlplane.domain.integrity.attempts import linked
from controlplane.domain.integrity.rows import (
    AttemptRecord,
    CacheUseRecord,
    CellRecord,
    DependencyRecord,
    FiringRecord,
    GroupRecord,
    IntegrityRows,
    JobRecord,
    KeyRecord,
    StepRecord,
    StoredTotalRecord,
    TaskCounts,
    TaskRecord,
)
from controlplane.domain.state.dependencies import JobMilestones
from controlplane.domain.state.states import Reason
from controlplane.queries.sql import execute, rows

R = TypeVar("R")

# The tasks of a page are counted under locks, in some 20 ms. A job has 10,000 tasks at most.
MOST_TASKS = 10_000
MOST_JOBS = 200
# Ids read for one page of jobs, most of which may have ended long ago: some ms.
MOST_IDS = 5_000


@dataclass(frozen=True, slots=True)
class JobsPage:
    """Jobs to check. `reached`: the job after which the next page begins; None at the end."""

    job_ids: list[int]
    reached: int | None


def find_page(after: int, *, ended_since: datetime | None = None, alert_kind: str = "") -> JobsPage:
    """Return the next jobs after the job `after` that are not deleted.

    With `ended_since`, only jobs that are open or ended since then, or with an open alert of
    the kind `alert_kind`.
    """
    ids = "SELECT id FROM controlplane_job WHERE id > %s ORDER BY id LIMIT %s"
    [(edge, count)] = rows(f"SELECT max(id), count(*) FROM ({ids}) AS page", [after, MOST_IDS])
    if not count:
        return JobsPage([], None)
    found = rows(
        """
        SELECT j.id, (SELECT sum(g.task_count) FROM controlplane_taskgroup g WHERE g.job_id = j.id)
        FROM controlplane_job j
        WHERE j.id > %(after)s AND j.id <= %(edge)s AND j.deleted_at IS NULL
          AND (%(since)s::timestamptz IS NULL OR j.finished_at IS NULL OR j.finished_at > %(since)s
               OR 'job ' || j.id IN (SELECT subject FROM controlplane_alert
                                     WHERE kind = %(kind)s AND cleared_at IS NULL))
        ORDER BY j.id LIMIT %(most)s
        """,
        {
            "after": after,
            "edge": edge,
            "since": ended_since,
            "kind": alert_kind,
            "most": MOST_JOBS + 1,
        },
    )
    chosen: list[int] = []
    total = 0
    for job_id, tasks in found:
        total += tasks or 0
        if chosen and (total > MOST_TASKS or len(chosen) == MOST_JOBS):
            return JobsPage(chosen, chosen[-1])
        chosen.append(job_id)
    return JobsPage(chosen, None if count < MOST_IDS else edge)


def check_database() -> Iterator[InvariantViolation]:
    """Yield every violation, without locks."""
    is_own = not connection.in_atomic_block
    with transaction.atomic():
        if is_own:
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        after: int | None = 0
        while after is not None:
            page = find_page(after)
            yield from find_violations(load_jobs(page.job_ids))
            after = page.reached
        yield from find_violations(load_cells())
        yield from find_violations(load_wrong_totals())
        yield from find_violations(load_keys())
        yield from find_violations(load_wrong_firings())
        yield from find_violations(_load_orphans(), among=[linked])


def check_all() -> list[InvariantViolation]:
    """Return every violation of a small database, in a few statements, for frequent checks."""
    job_ids = [job_id for (job_id,) in rows("SELECT id FROM controlplane_job ORDER BY id")]
    parts = (
        load_jobs(job_ids),
        load_cells(),
        load_wrong_totals(),
        load_keys(),
        load_wrong_firings(),
    )
    return [violation for part in parts for violation in find_violations(part)]


def load_repaired(job_ids: Sequence[int]) -> IntegrityRows:
    """Return the rows of existing jobs that the invariants with a repair need.

    Include only the tasks whose `attempt_open` contradicts their attempts.
    """
    jobs = _load(JobRecord, "job", "id = ANY(%s) AND deleted_at IS NULL", job_ids)
    known = [job.id for job in jobs]
    groups = _load(GroupRecord, "taskgroup", "job_id = ANY(%s)", known)
    counts: dict[int, dict[TaskState, int]] = {group.id: {} for group in groups}
    for group_id, state, count in rows(_COUNTS, [known]):
        counts.setdefault(group_id, {})[TaskState(state)] = count
    excused = dict(rows(_EXCUSED, [known, Reason.DEPENDENCY_FAILED.value]))
    wrong = [task_id for (task_id,) in rows(_WRONGLY_OPEN, {"jobs": known})]
    return IntegrityRows(
        jobs=jobs,
        groups=groups,
        task_counts={key: TaskCounts(found, excused.get(key, 0)) for key, found in counts.items()},
        tasks=_load(TaskRecord, "task", "id = ANY(%s)", wrong) if wrong else (),
        attempts=_load(AttemptRecord, "attempt", "task_id = ANY(%s)", wrong) if wrong else (),
        dependencies=[_dependency(*row) for row in rows(_DEPENDENCIES, {"jobs": known})],
        awaited=frozenset(job_id for (job_id,) in rows(_AWAITED, [known])),
    )


def load_jobs(job_ids: Sequence[int]) -> IntegrityRows:
    """Return all rows of existing jobs."""
    found = load_repaired(job_ids)
    known = [job.id for job in found.jobs]
    tasks = _load(TaskRecord, "task", "job_id = ANY(%s)", known)
    return replace(
        found,
        tasks=tasks,
        attempts=_load(AttemptRecord, "attempt", "task_id = ANY(%s)", [t.id for t in tasks]),
        cache_uses=[_cache_use(row) for row in rows(_CACHE_USES, [known])],
        steps=_load(StepRecord, "transition", "job_id = ANY(%s)", known),
        known_cells=_cell_ids(),
    )


def _cache_use(row: tuple[Any, ...]) -> CacheUseRecord:
    task_id, job_id, state, status, *rest = row
    return CacheUseRecord(task_id, job_id, TaskState(state), CacheStatus(status), *rest)


def load_cells() -> IntegrityRows:
    """Return all cells with their usage, except of tokens, which belong to the pool."""
    usage: dict[int, dict[str, int]] = {}
    for cell_id, resources, count in rows(_USAGE):
        cell = usage.setdefault(cell_id, {})
        for name, amount in json.loads(resources).items():
            cell[name] = cell.get(name, 0) + amount * count
    found = rows(
        """
        SELECT c.id, c.name, c.incarnation, l.incarnation, c.capacity, p.tokens
        FROM controlplane_cell c JOIN controlplane_pool p ON p.id = c.pool_id
        LEFT JOIN controlplane_celllease l ON l.cell_id = c.id ORDER BY c.id
        """
    )
    cells = []
    for cell_id, name, incarnation, leased, capacity, tokens in found:
        of_pool = json.loads(tokens)
        used = {key: n for key, n in usage.get(cell_id, {}).items() if key not in of_pool}
        cells.append(CellRecord(cell_id, name, incarnation, leased, json.loads(capacity), used))
    return IntegrityRows(cells=cells)


def load_wrong_totals(
    among: Sequence[int] | None = None, *, limit: int | None = None
) -> IntegrityRows:
    """Return at most `limit` totals that differ from their sizes, of all projects or `among`."""
    found = rows(_WRONG_TOTALS, {"among": among and list(among), "limit": limit})
    return IntegrityRows(totals=[StoredTotalRecord(*row) for row in found])


def load_keys() -> IntegrityRows:
    """Return the concurrency keys that attempts hold."""
    return IntegrityRows(keys=[KeyRecord(*row) for row in rows(_KEYS)])


def load_wrong_firings() -> IntegrityRows:
    """Return the instants of schedules whose job is another one, or that of another instant."""
    return IntegrityRows(firings=[FiringRecord(*row) for row in rows(_WRONG_FIRINGS)])


def _dependency(*row: Any) -> DependencyRecord:
    other = JobMilestones(TaskState(row[5]), row[6], row[7]) if row[5] else None
    return DependencyRecord(row[0], row[1], row[2], row[3], row[4], other)


def _load_orphans() -> IntegrityRows:
    """Return tasks without a job and attempts without a task, which no page of jobs contains."""
    parentless = "NOT EXISTS (SELECT 1 FROM controlplane_{0} o WHERE o.id = {0}_id)"
    return IntegrityRows(
        tasks=_load(TaskRecord, "task", parentless.format("job")),
        attempts=_load(AttemptRecord, "attempt", parentless.format("task")),
        known_cells=_cell_ids(),
    )


def _cell_ids() -> frozenset[int]:
    return frozenset(cell_id for (cell_id,) in rows("SELECT id FROM controlplane_cell"))


def _load(kind: type[R], table: str, where: str, *ids: Sequence[Any]) -> list[R]:
    """Return rows of a table as records with its columns as fields, ordered by the first one."""
    columns = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    states = [n for n, of in enumerate(columns.values()) if of in (TaskState, TaskState | None)]
    found = []
    for row in rows(
        f"SELECT {', '.join(columns)} FROM controlplane_{table} WHERE {where} ORDER BY 1",
        [list(given) for given in ids],
    ):
        values = list(row)
        for place in states:
            values[place] = None if row[place] is None else TaskState(row[place])
        found.append(kind(*values))
    return found


_COUNTS = """
SELECT group_id, state, count(*) FROM controlplane_task WHERE job_id = ANY(%s) GROUP BY 1, 2
"""

_EXCUSED = f"""
SELECT t.group_id, count(*) FROM controlplane_task t
JOIN controlplane_taskgroup g ON g.id = t.group_id AND g.depends_on <> '[]'::jsonb
WHERE t.job_id = ANY(%s) AND t.state = {TaskState.KILLED:d} AND EXISTS (
    SELECT 1 FROM controlplane_transition h WHERE h.task_id = t.id AND h.reason = %s)
GROUP BY 1
"""

_WRONGLY_OPEN = """
SELECT t.id FROM controlplane_task t
LEFT JOIN controlplane_attempt a
  ON a.task_id = t.id AND a.released_at IS NULL AND a.job_id = ANY(%(jobs)s)
WHERE t.job_id = ANY(%(jobs)s)
  AND (t.attempt_open <> (a.uid IS NOT NULL) OR a.uid <> t.attempt_uid)
"""

_CACHE_USES = f"""
SELECT t.id, t.job_id, t.state, t.cache_status, t.cache_blocked, t.attempt_uid, t.cache_entry_id,
       EXISTS (SELECT FROM controlplane_cacheentry e WHERE e.id = t.cache_entry_id),
       COALESCE((g.cache ->> 'serialize')::boolean, false) AND t.cache_identity IS NOT NULL,
       r.attempt_uid
FROM controlplane_task t
JOIN controlplane_taskgroup g ON g.id = t.group_id
LEFT JOIN controlplane_cachereservation r ON r.identity = t.cache_identity
WHERE t.job_id = ANY(%s) AND t.cache_status <> {CacheStatus.DISABLED:d} ORDER BY t.id
"""

_DEPENDENCIES = """
SELECT d.id, d.job_id, d.on_job_id, d.until, d.failed_at, j.state, j.started_at, j.settled_at
FROM controlplane_jobdependency d LEFT JOIN controlplane_job j ON j.id = d.on_job_id
WHERE d.met_at IS NULL AND (d.on_job_id = ANY(%(jobs)s) OR d.job_id = ANY(%(jobs)s))
ORDER BY d.id
"""

_AWAITED = """
SELECT j.id FROM controlplane_job j
WHERE j.id = ANY(%s) AND (
    EXISTS (SELECT 1 FROM controlplane_jobdependency d
            WHERE d.on_job_id = j.id AND d.met_at IS NULL AND d.failed_at IS NULL)
    OR EXISTS (SELECT 1 FROM controlplane_job c
               WHERE c.parent_id = j.id AND c.finished_at IS NULL))
"""

# One read of all sizes: there is no index by project, which each upload would have to change.
_WRONG_TOTALS = """
SELECT project_id, coalesce(t.total_bytes, 0), coalesce(s.counted_bytes, 0)
FROM controlplane_storedtotal t FULL JOIN (
    SELECT project_id, sum(counted_bytes)::bigint AS counted_bytes
    FROM controlplane_storedsize GROUP BY project_id
) s USING (project_id)
WHERE coalesce(t.total_bytes, 0) <> coalesce(s.counted_bytes, 0)
  AND (%(among)s::bigint[] IS NULL OR project_id = ANY(%(among)s))
ORDER BY project_id LIMIT %(limit)s
"""

_KEYS = """
SELECT s.project_id, s.concurrency ->> 'key', count(*),
       CASE WHEN bool_and(s.concurrency ->> 'limit' IS NOT NULL)
            THEN max((s.concurrency ->> 'limit')::bigint) END
FROM controlplane_attempt a
JOIN controlplane_task t ON t.id = a.task_id
JOIN controlplane_shape s ON s.id = t.shape_id
WHERE a.concurrency_id IS NOT NULL AND a.released_at IS NULL
GROUP BY a.concurrency_id, s.project_id, s.concurrency ->> 'key' ORDER BY 1, 2
"""

# The guid of each instant, with its fraction of a second if it has one (a run by hand).
_WRONG_FIRINGS = """
SELECT * FROM (
    SELECT f.id, s.project_id,
           s.name || '/' || to_char(f.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
           || CASE WHEN f.at = date_trunc('second', f.at) THEN '' ELSE to_char(f.at, '.US') END
           || 'Z' AS guid,
           f.job_id, j.project_id AS job_project, j.guid AS job_guid,
           count(*) OVER (PARTITION BY f.job_id) AS starts
    FROM controlplane_schedulefiring f
    JOIN controlplane_schedule s ON s.id = f.schedule_id
    LEFT JOIN controlplane_job j ON j.id = f.job_id
    WHERE f.job_id IS NOT NULL
) w
WHERE starts > 1
   OR job_project IS NOT NULL AND (job_project, job_guid) IS DISTINCT FROM (project_id, guid)
ORDER BY id
"""

_USAGE = """
SELECT h.cell_id, COALESCE(h.resources, g.resources), h.count FROM (
    SELECT a.cell_id, a.group_id, a.resources, count(*) FROM controlplane_attempt a
    JOIN controlplane_cell c ON c.id = a.cell_id AND c.incarnation = a.incarnation
    WHERE a.released_at IS NULL GROUP BY a.cell_id, a.group_id, a.resources
) h JOIN controlplane_taskgroup g ON g.id = h.group_id
"""
