"""Search jobs, tasks, attempts, cells, pools and projects: one search for palette, lists and API.

Every statement is bounded. Indexes find the beginnings of names and guids among all jobs, and of
uids among all attempts; text inside a name, a guid or a label is searched in the newest jobs only.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from controlplane.queries.sql import Row, named_rows, rows

MAX_TERM = 255
"""Characters of a term; names and guids are not longer, so a longer term finds nothing."""

SCANNED_JOBS = 5_000
"""The newest jobs in which text inside names, guids and labels is searched."""

MAX_FOUND = 1_000
"""Results of one kind that a list can show."""

# A name of a group without a job is searched in fewer jobs, which have several groups each.
_JOBS_OF_GROUPS = 1_000
_SCANNED_GROUPS = 5_000
_MAX_GROUPS = 100
_JOBS_OF_A_NAME = 50
# Shorter uids would be the beginning of too many attempts.
_LEAST_UID_DIGITS = 6
_UID_DIGITS = 32

_LARGEST_ID = 2**63


@dataclass(frozen=True, slots=True)
class TaskTerm:
    """The parts of a term JOB/GROUP.INDEX; an empty or missing part selects all."""

    job: str
    group: str
    index: int | None


def read_task_term(term: str) -> TaskTerm | None:
    """Return the parts of JOB/GROUP.INDEX, JOB/GROUP or GROUP.INDEX; None: it is none of these."""
    job, slash, rest = term.rpartition("/")
    group, dot, index = rest.rpartition(".")
    if dot and re.fullmatch("[0-9]{1,9}", index):
        return TaskTerm(job, group, int(index))
    return TaskTerm(job, rest, None) if slash and job else None


def find_job_ids(
    term: str, *, readable: Collection[int] | None = None, limit: int = MAX_FOUND
) -> list[int]:
    """Return the ids of visible jobs that match a term, the newest first.

    `readable`: the projects whose jobs are searched; None: all.
    """
    if not _is_searchable(term):
        return []
    found = rows(
        f"""
        WITH newest AS ({_newest_jobs(readable)}), matches AS (
            SELECT id FROM newest
            WHERE lower(name) LIKE %(inside)s OR lower(guid) LIKE %(inside)s
               OR labels <> '{{}}' AND lower(labels::text) LIKE %(label)s AND EXISTS (
                   SELECT FROM jsonb_each_text(labels) l
                   WHERE lower(l.key || '=' || l.value) LIKE %(inside)s)
            UNION
            SELECT id FROM ({_by_beginning("name", readable)}) by_name
            UNION
            SELECT id FROM ({_by_beginning("guid", readable)}) by_guid
            UNION
            SELECT id FROM controlplane_job
            WHERE id = %(number)s AND deleted_at IS NULL {_of_projects(readable)}
        )
        SELECT id FROM matches ORDER BY id DESC LIMIT %(limit)s
        """,
        _parameters(term, readable) | {"limit": min(limit, MAX_FOUND)},
    )
    return [job_id for (job_id,) in found]


def find_task_ids(term: str, *, limit: int = MAX_FOUND) -> list[int]:
    """Return the ids of visible tasks with the id, or with a name JOB/GROUP.INDEX, newest first.

    A name finds jobs first, then their groups, then tasks by their index in a group.
    """
    if not _is_searchable(term):
        return []
    found = {key for (key,) in rows(_TASK_BY_ID, {"number": _number(term)})}
    parts = read_task_term(term) or TaskTerm("", term, None)
    wanted = {"groups": _find_group_ids(parts, limit), "index": parts.index, "limit": limit}
    index = "" if parts.index is None else "AND index = %(index)s"
    found |= {key for (key,) in rows(_TASKS_OF_GROUPS.format(index=index), wanted)}
    return sorted(found, reverse=True)[:limit]


def find_attempt_uids(term: str, *, limit: int = MAX_FOUND) -> list[UUID]:
    """Return the uids of attempts that begin with the term, the newest first."""
    digits = term.lower().replace("-", "")
    if not re.fullmatch(f"[0-9a-f]{{{_LEAST_UID_DIGITS},{_UID_DIGITS}}}", digits):
        return []
    found = rows(
        """
        SELECT a.uid FROM controlplane_attempt a JOIN controlplane_job j ON j.id = a.job_id
        WHERE a.uid BETWEEN %(first)s AND %(last)s
          AND (j.deleted_at IS NULL OR a.released_at IS NULL)
        ORDER BY a.uid DESC LIMIT %(limit)s
        """,
        {
            "first": UUID(digits.ljust(_UID_DIGITS, "0")),
            "last": UUID(digits.ljust(_UID_DIGITS, "f")),
            "limit": limit,
        },
    )
    return [uid for (uid,) in found]


def find_jobs(term: str, *, limit: int) -> list[Row]:
    """Return id, name, state and project of jobs that match the term, the newest first."""
    return named_rows(
        """
        SELECT j.id, j.name, j.state, d.name || '/' || p.name AS project FROM controlplane_job j
        JOIN controlplane_project p ON p.id = j.project_id
        JOIN controlplane_domain d ON d.id = p.domain_id
        WHERE j.id = ANY(%s) ORDER BY j.id DESC
        """,
        [find_job_ids(term, limit=limit)],
    )


def find_tasks(term: str, *, limit: int) -> list[Row]:
    """Return id, name (JOB/GROUP.INDEX) and state of tasks that match the term."""
    return named_rows(
        """
        SELECT t.id, j.name || '/' || g.name || '.' || t.index AS name, t.state
        FROM controlplane_task t JOIN controlplane_job j ON j.id = t.job_id
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        WHERE t.id = ANY(%s) ORDER BY t.id DESC
        """,
        [find_task_ids(term, limit=limit)],
    )


def find_attempts(term: str, *, limit: int) -> list[Row]:
    """Return uid, state and the name of the task of attempts that match the term."""
    return named_rows(
        """
        SELECT a.uid, a.state, a.number, j.name || '/' || g.name || '.' || t.index AS task
        FROM controlplane_attempt a JOIN controlplane_task t ON t.id = a.task_id
        JOIN controlplane_job j ON j.id = t.job_id
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        WHERE a.uid = ANY(%s) ORDER BY a.uid DESC
        """,
        [find_attempt_uids(term, limit=limit)],
    )


def find_cells(term: str, *, limit: int) -> list[Row]:
    """Return id, name, state and pool of cells whose name contains the term."""
    return _by_name(
        "c.id, c.name, c.state, p.name AS pool",
        "controlplane_cell c JOIN controlplane_pool p ON p.id = c.pool_id",
        "c.name",
        term,
        limit,
    )


def find_pools(term: str, *, limit: int) -> list[Row]:
    """Return id and name of pools whose name contains the term."""
    return _by_name("id, name", "controlplane_pool", "name", term, limit)


def find_projects(term: str, *, limit: int) -> list[Row]:
    """Return id and name (DOMAIN/PROJECT) of projects whose name contains the term."""
    name = "d.name || '/' || p.name"
    tables = "controlplane_project p JOIN controlplane_domain d ON d.id = p.domain_id"
    return _by_name(f"p.id, {name} AS name", tables, name, term, limit)


_TASKS_OF_GROUPS = """
SELECT t.id FROM unnest(%(groups)s::bigint[]) WITH ORDINALITY AS g(id, place)
CROSS JOIN LATERAL (SELECT id FROM controlplane_task
                    WHERE group_id = g.id {index} ORDER BY index LIMIT %(limit)s) t
ORDER BY g.place LIMIT %(limit)s
"""
_TASK_BY_ID = """
SELECT t.id FROM controlplane_task t JOIN controlplane_job j ON j.id = t.job_id
WHERE t.id = %(number)s AND j.deleted_at IS NULL
"""


def _by_name(columns: str, tables: str, name: str, term: str, limit: int) -> list[Row]:
    """Return rows of a small table whose name contains the term, those that begin with it first."""
    if not _is_searchable(term):
        return []
    return named_rows(
        f"""
        SELECT {columns} FROM {tables} WHERE lower({name}) LIKE %(inside)s
        ORDER BY lower({name}) NOT LIKE %(beginning)s, {name} LIMIT %(limit)s
        """,
        _parameters(term, None) | {"limit": limit},
    )


def _find_group_ids(parts: TaskTerm, limit: int) -> list[int]:
    """Return groups whose name begins with a part of a term: of its jobs, or of the newest jobs."""
    if parts.job:
        job_ids = find_job_ids(parts.job, limit=_JOBS_OF_A_NAME)
        jobs = "SELECT unnest(%(jobs)s::bigint[]) AS id"
    else:
        job_ids = []
        jobs = (
            "SELECT id FROM controlplane_job WHERE deleted_at IS NULL"
            f" ORDER BY id DESC LIMIT {_JOBS_OF_GROUPS}"
        )
    found = rows(
        f"""
        SELECT id FROM (
            SELECT g.id, g.job_id, g.position, g.name FROM ({jobs}) j
            JOIN LATERAL (SELECT id, job_id, position, name FROM controlplane_taskgroup
                          WHERE job_id = j.id ORDER BY position OFFSET 0) g ON true
            LIMIT {_SCANNED_GROUPS}
        ) g WHERE lower(name) LIKE %(beginning)s
        ORDER BY job_id DESC, position LIMIT %(limit)s
        """,
        {"jobs": job_ids, "beginning": _beginning(parts.group), "limit": min(limit, _MAX_GROUPS)},
    )
    return [group_id for (group_id,) in found]


def _newest_jobs(readable: Collection[int] | None) -> str:
    """Return the statement of the newest jobs, of each project if the projects are limited."""
    newest = "SELECT id, name, guid, labels FROM controlplane_job WHERE deleted_at IS NULL"
    if readable is None:
        return f"{newest} ORDER BY id DESC LIMIT {SCANNED_JOBS}"
    share = max(SCANNED_JOBS // max(len(readable), 1), 100)
    return f"""
        SELECT n.* FROM unnest(%(readable)s::bigint[]) AS p(id)
        JOIN LATERAL ({newest} AND project_id = p.id ORDER BY id DESC LIMIT {share}) n ON true
        """


def _by_beginning(column: str, readable: Collection[int] | None) -> str:
    """Return the statement of jobs that begin with the term, by an index (models.Job)."""
    return f"""
        SELECT id FROM controlplane_job
        WHERE lower({column}) COLLATE "C" LIKE %(beginning)s
          AND deleted_at IS NULL {_of_projects(readable)}
        ORDER BY lower({column}) COLLATE "C" LIMIT {MAX_FOUND}
        """


def _of_projects(readable: Collection[int] | None) -> str:
    return "" if readable is None else "AND project_id = ANY(%(readable)s)"


def _parameters(term: str, readable: Collection[int] | None) -> dict[str, Any]:
    beginning = _beginning(term)
    found: dict[str, Any] = {
        "beginning": beginning,
        "inside": f"%{beginning}",
        # Cheaper than a read of each label. JSON has other characters for a quote and a backslash.
        "label": "%" if {*'"\\'} & {*term} else f"%{_beginning(term.partition('=')[0])}",
        "number": _number(term),
    }
    if readable is not None:
        found["readable"] = sorted(readable)
    return found


def _beginning(term: str) -> str:
    """Return the pattern of texts that begin with the term."""
    return re.sub(r"([\\%_])", r"\\\1", term.lower()) + "%"


def _number(term: str) -> int | None:
    is_number = re.fullmatch("[0-9]{1,19}", term) is not None and int(term) < _LARGEST_ID
    return int(term) if is_number else None


def _is_searchable(term: str) -> bool:
    return 0 < len(term) <= MAX_TERM and "\x00" not in term
