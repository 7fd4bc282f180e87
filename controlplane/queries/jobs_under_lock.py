"""Jobs under lock (jobs before tasks, attempts, cells; each by id), and what is read then."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.jobs import GroupRow, JobRow
from controlplane.domain.snapshots import GroupFacts
from controlplane.domain.states import CallbackOn
from controlplane.queries.sql import rows


def lock_jobs(job_ids: Iterable[int]) -> dict[int, JobRow]:
    """Lock the jobs by id; missing ones are absent. Whoever changes a task does this first."""
    return _load_jobs(job_ids, "FOR NO KEY UPDATE")


def read_jobs(job_ids: Iterable[int]) -> dict[int, JobRow]:
    """The same without a lock, for who only asks."""
    return _load_jobs(job_ids, "")


def find_free_jobs(job_ids: Sequence[int]) -> list[int]:
    """Those that nobody else has locked, by id."""
    found = rows(
        """
        SELECT id FROM controlplane_job WHERE id = ANY(%s)
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """,
        [list(job_ids)],
    )
    return [job_id for (job_id,) in found]


def _load_jobs(job_ids: Iterable[int], lock: str) -> dict[int, JobRow]:
    found = rows(
        f"""
        SELECT id, state, min_available, explicit_minimum, max_task_failures, ending_as,
               ending_reason, failure_reason, start_after, scheduling_timeout_seconds,
               started_at, finished_at, settled_at, coscheduled, is_bouncing, waits_for_jobs,
               is_watched, kind, callback_on
        FROM controlplane_job WHERE id = ANY(%s) ORDER BY id {lock}
        """,
        [sorted(set(job_ids))],
    )
    return {row[0]: _job_row(row) for row in found}


def load_groups(job_ids: Sequence[int]) -> dict[int, list[GroupRow]]:
    """The groups of locked jobs, by job, in order of position."""
    found = rows(
        """
        SELECT job_id, id, name, counts, min_available, depends_on, startable_at,
               explicit_minimum, killed_by_dependency, at_most_once
        FROM controlplane_taskgroup WHERE job_id = ANY(%s) ORDER BY job_id, position
        """,
        [list(job_ids)],
    )
    groups: dict[int, list[GroupRow]] = {}
    for row in found:
        groups.setdefault(row[0], []).append(_group_row(row[1:]))
    return groups


def find_unreleased_jobs(job_ids: Sequence[int]) -> set[int]:
    """Those of `job_ids` of which some attempt still holds capacity."""
    found = rows(
        """
        SELECT DISTINCT job_id FROM controlplane_attempt
        WHERE job_id = ANY(%s) AND released_at IS NULL
        """,
        [list(job_ids)],
    )
    return {job_id for (job_id,) in found}


def find_open_dependencies(job_ids: Sequence[int]) -> list[tuple[int, int, str]]:
    """(id, job, until) of what other jobs wait for in `job_ids`."""
    found = rows(
        """
        SELECT id, on_job_id, until FROM controlplane_jobdependency
        WHERE on_job_id = ANY(%s) AND met_at IS NULL AND failed_at IS NULL
        ORDER BY id FOR NO KEY UPDATE
        """,
        [list(job_ids)],
    )
    return [(key, on_job_id, until) for key, on_job_id, until in found]


def _job_row(row: tuple[Any, ...]) -> JobRow:
    ending_as = None if row[5] is None else TaskState(row[5])
    columns = [row[0], TaskState(row[1]), *row[2:5], ending_as, *row[6:-1], CallbackOn(row[-1])]
    return JobRow(*columns)


def _group_row(row: tuple[Any, ...]) -> GroupRow:
    group_id, name, counts, minimum, depends_on, startable_at, explicit, excused, once = row
    return GroupRow(
        facts=GroupFacts(
            group_id=group_id,
            name=name,
            counts={state: counts[state] for state in TaskState if counts[state]},
            min_available=minimum,
            depends_on=tuple((item["group"], item["until"]) for item in json.loads(depends_on)),
            startable_at=startable_at,
        ),
        explicit_minimum=explicit,
        killed_by_dependency=excused,
        at_most_once=once,
    )
