"""Read the rows for the invariants, jobs page by page, in one consistent snapshot."""

import json
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from django.db import connection, transaction

from controlplane.contract.states import TaskState
from controlplane.domain.integrity.catalogue import find_violations
from controlplane.domain.integrity.rows import (
    AttemptRecord,
    CellRecord,
    GroupRecord,
    IntegrityRows,
    InvariantViolation,
    JobRecord,
    StepRecord,
    TaskRecord,
)
from controlplane.queries.sql import execute, rows

# Jobs read at once: of 10,000 tasks each they still fit into memory.
PAGE = 100


def check_database(*, page: int = PAGE) -> Iterator[InvariantViolation]:
    """Return every violation. Nothing is locked; writers continue meanwhile."""
    is_own = not connection.in_atomic_block
    with transaction.atomic():
        if is_own:
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        last = 0
        while job_ids := _page_after(last, page):
            yield from find_violations(load_jobs(job_ids))
            last = job_ids[-1]
        yield from find_violations(load_cells())
        yield from _orphans()


def _page_after(last: int, page: int) -> list[int]:
    statement = """
        SELECT id FROM controlplane_job
        WHERE id > %s AND deleted_at IS NULL ORDER BY id LIMIT %s
        """
    return [job_id for (job_id,) in rows(statement, [last, page])]


def check_all() -> list[InvariantViolation]:
    """Return every violation of a small database, in five statements, for frequent checks."""
    job_ids = [
        job_id
        for (job_id,) in rows(
            "SELECT id FROM controlplane_job WHERE deleted_at IS NULL ORDER BY id"
        )
    ]
    return [*find_violations(load_jobs(job_ids)), *find_violations(load_cells())]


def load_jobs(job_ids: Sequence[int]) -> IntegrityRows:
    """The jobs with all that belongs to them."""
    found = {name: rows(sql, [list(job_ids)]) for name, sql in _OF_JOBS.items()}
    return IntegrityRows(
        jobs=[JobRecord(*_with_states(row, 1, 2)) for row in found["jobs"]],
        groups=[GroupRecord(*row) for row in found["groups"]],
        tasks=[TaskRecord(*_with_states(row, 4)) for row in found["tasks"]],
        attempts=[AttemptRecord(*_with_states(row, 7)) for row in found["attempts"]],
        steps=[StepRecord(*_with_states(row, 4, 5, 6)) for row in found["steps"]],
        known_cells=frozenset(cell_id for (cell_id,) in rows("SELECT id FROM controlplane_cell")),
    )


def load_cells() -> IntegrityRows:
    """All cells, with what is held of each; tokens are held of its pool."""
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
    return IntegrityRows(cells=cells, known_cells=frozenset(cell.id for cell in cells))


_OF_JOBS = MappingProxyType(
    {
        "jobs": """
        SELECT id, state, ending_as, min_available, explicit_minimum, max_task_failures,
               coscheduled, is_bouncing, waits_for_jobs, started_at, finished_at, settled_at
        FROM controlplane_job WHERE id = ANY(%s) ORDER BY id
        """,
        "groups": """
        SELECT id, job_id, name, counts, replicas, task_count, min_available,
               killed_by_dependency, startable_at, retries_failure, retries_preemption,
               retries_system, at_most_once, exclusive
        FROM controlplane_taskgroup WHERE job_id = ANY(%s) ORDER BY id
        """,
        "tasks": """
        SELECT id, job_id, group_id, index, state, attempt_number, attempt_uid, attempt_open,
               failure_count, preemption_count, system_failure_count, system_row,
               consecutive_crashes, started_at, finished_at
        FROM controlplane_task WHERE job_id = ANY(%s) ORDER BY id
        """,
        "attempts": """
        SELECT uid, task_id, group_id, job_id, cell_id, incarnation, number, state, charged,
               charge, container_id,
               created_at, started_at, finished_at, released_at, release_kind
        FROM controlplane_attempt
        WHERE task_id IN (SELECT id FROM controlplane_task WHERE job_id = ANY(%s))
        ORDER BY task_id, number
        """,
        "steps": """
        SELECT id, job_id, task_id, attempt_uid, from_state, to_state, attempt_state, reason
        FROM controlplane_transition WHERE job_id = ANY(%s) ORDER BY id
        """,
    }
)

_USAGE = """
SELECT h.cell_id, g.resources, h.count FROM (
    SELECT a.cell_id, a.group_id, count(*) FROM controlplane_attempt a
    JOIN controlplane_cell c ON c.id = a.cell_id AND c.incarnation = a.incarnation
    WHERE a.released_at IS NULL GROUP BY a.cell_id, a.group_id
) h JOIN controlplane_taskgroup g ON g.id = h.group_id
"""

_ORPHANS = (
    (
        "attempt",
        """
        SELECT a.uid, a.task_id FROM controlplane_attempt a
        WHERE NOT EXISTS (SELECT 1 FROM controlplane_task t WHERE t.id = a.task_id)
        ORDER BY a.uid
        """,
        "task",
    ),
    (
        "task",
        """
        SELECT t.id, t.job_id FROM controlplane_task t
        WHERE NOT EXISTS (SELECT 1 FROM controlplane_job j WHERE j.id = t.job_id)
        ORDER BY t.id
        """,
        "job",
    ),
)


def _orphans() -> Iterator[InvariantViolation]:
    """INV-12 of rows that no page of jobs has."""
    for kind, sql, owner in _ORPHANS:
        for subject, missing in rows(sql):
            yield InvariantViolation(12, f"{kind} {subject}", f"there is no {owner} {missing}")


def _with_states(row: tuple[Any, ...], *places: int) -> list[Any]:
    """The row with the numbers at `places`, where there are any, as states."""
    return [
        TaskState(value) if place in places and value is not None else value
        for place, value in enumerate(row)
    ]
