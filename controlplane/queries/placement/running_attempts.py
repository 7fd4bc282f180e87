"""Load the attempts on a pool's cells, and those that are leaving: only for tasks without room."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.model.snapshot import EvictableAttempt, ReleasingCapacity
from controlplane.domain.scopes import Scope, scopes_of
from controlplane.domain.state.states import Band
from controlplane.queries.sql import decoded, rows, scalar


@dataclass(frozen=True, slots=True)
class CellAttempts:
    """The attempts on some cells: those that have not ended, and what ended ones still hold.

    `leaving_scopes`: by scope, what the latter hold; `running_tasks` counts them.
    """

    running: list[EvictableAttempt]
    leaving: list[ReleasingCapacity]
    leaving_scopes: dict[Scope, dict[str, int]]


def is_any_below(cell_ids: Sequence[int], band: Band) -> bool:
    """Whether something less important than `band` runs on the cells."""
    found = scalar(
        """
        SELECT EXISTS (
            SELECT FROM (
                SELECT DISTINCT job_id FROM controlplane_attempt
                WHERE cell_id = ANY(%s) AND released_at IS NULL
            ) a JOIN controlplane_job j ON j.id = a.job_id AND j.band > %s)
        """,
        [list(cell_ids), int(band)],
    )
    return bool(found)


def load_held(cell_ids: Sequence[int]) -> CellAttempts:
    """All unreleased attempts on the cells, and elsewhere those of gangs with members on them."""
    found = rows(
        f"""
        SELECT a.task_id, a.job_id, a.group_id, a.cell_id, j.band,
               COALESCE(a.resources, g.resources), j.owner_id, j.project_id, p.domain_id,
               COALESCE(a.started_at, a.created_at),
               COALESCE((g.launch->>'stop_grace_seconds')::float8, 10),
               j.coscheduled, NOT g.at_most_once, a.state = {S.ASSIGNED:d},
               COALESCE(a.started_at, a.created_at) + make_interval(secs => g.timeout_seconds),
               a.finished_at IS NOT NULL
        FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        JOIN controlplane_job j ON j.id = a.job_id
        JOIN controlplane_project p ON p.id = j.project_id
        WHERE a.uid IN (
            SELECT uid FROM controlplane_attempt
            WHERE cell_id = ANY(%(cells)s) AND released_at IS NULL
            UNION ALL
            SELECT b.uid FROM controlplane_attempt b
            WHERE b.released_at IS NULL AND b.job_id IN (
                SELECT c.job_id FROM controlplane_attempt c
                JOIN controlplane_job k ON k.id = c.job_id AND k.coscheduled
                WHERE c.cell_id = ANY(%(cells)s) AND c.released_at IS NULL))
        ORDER BY a.task_id
        """,
        {"cells": list(cell_ids)},
    )
    held = CellAttempts([], [], {})
    for row in found:
        task, job, group, cell, band, resources, owner, project, domain, began, stop = row[:11]
        is_gang, is_evictable, is_free, ends_by, has_ended = row[11:]
        amounts = decoded(resources)
        if has_ended:
            held.leaving.append(ReleasingCapacity(cell, amounts))
            for scope in scopes_of(owner, project, domain):
                kept = held.leaving_scopes.setdefault(scope, {"running_tasks": 0})
                kept["running_tasks"] += 1
                for name, amount in amounts.items():
                    kept[name] = kept.get(name, 0) + amount
            continue
        held.running.append(
            EvictableAttempt(
                task_id=task,
                job_id=job,
                group_id=group,
                cell_id=cell,
                band=Band(band),
                resources=amounts,
                owner_id=owner,
                project_id=project,
                domain_id=domain,
                began_at=began,
                stop_seconds=stop,
                gang=job if is_gang else None,
                is_evictable=is_evictable,
                is_free=is_free,
                ends_by=ends_by,
            )
        )
    return held


def count_without_room(group_ids: Iterable[int], *, now: datetime) -> dict[tuple[int, int], int]:
    """Return by group and shape the tasks that could be placed now and have no reservation."""
    found = rows(
        f"""
        SELECT group_id, shape_id, count(*) FROM controlplane_task
        WHERE group_id = ANY(%s) AND state = {S.PENDING:d} AND NOT attempt_open
          AND NOT cache_blocked AND nominated_cell_id IS NULL
          AND (not_before IS NULL OR not_before <= %s)
        GROUP BY group_id, shape_id
        """,
        [sorted(set(group_ids)), now],
    )
    return {(group_id, shape_id): count for group_id, shape_id, count in found}
