"""Lock jobs (before tasks, attempts and cells; each by id), and load facts under the locks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.job_rollup import GroupRow, JobRow
from controlplane.domain.state.states import CallbackOn
from controlplane.queries.sql import rows

HAS_RUN = f"({{task}}.started_at IS NOT NULL OR {{task}}.state = {TaskState.SUCCEEDED:d})"
"""Whether a task was ever RUNNING or has succeeded; `started_at` is never cleared."""

_STARTS = f"""
    SELECT t.group_id, count(*) FROM controlplane_task t
    WHERE t.group_id = ANY(%s) AND {HAS_RUN.format(task="t")} GROUP BY t.group_id
    """


def lock_jobs(job_ids: Iterable[int]) -> dict[int, JobRow]:
    """Lock the jobs by id, without missing ones. Every change of a task requires this lock."""
    return _load_jobs(job_ids, "FOR NO KEY UPDATE")


def read_jobs(job_ids: Iterable[int]) -> dict[int, JobRow]:
    """Read the jobs without a lock."""
    return _load_jobs(job_ids, "")


def find_free_jobs(job_ids: Sequence[int]) -> list[int]:
    """Lock the jobs that no other transaction has locked, by id; return their ids."""
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
               started_at, finished_at, settled_at, coscheduled, is_requeuing, is_held,
               waits_for_jobs, is_watched, kind, callback_on
        FROM controlplane_job WHERE id = ANY(%s) ORDER BY id {lock}
        """,
        [sorted(set(job_ids))],
        prepare=True,
    )
    return {row.job_id: row for row in map(_job_row, found)}


def load_groups(job_ids: Sequence[int]) -> dict[int, list[GroupRow]]:
    """Return the groups of jobs, by job, in the order of positions."""
    found = rows(
        """
        SELECT job_id, id, name, counts, min_available, depends_on, startable_at,
               killed_by_dependency, at_most_once, task_count < replicas
        FROM controlplane_taskgroup WHERE job_id = ANY(%s) ORDER BY job_id, position
        """,
        [list(job_ids)],
        prepare=True,
    )
    groups: dict[int, list[GroupRow]] = {}
    for job_id, *row in found:
        groups.setdefault(job_id, []).append(_group_row(row))
    _count_starts(groups)
    return groups


def _count_starts(groups: Mapping[int, list[GroupRow]]) -> None:
    """Set `ran` of the groups for whose start others wait, in place.

    Read the tasks only of jobs with such groups, which are few.
    """
    awaited = [
        other.facts.group_id
        for listed in groups.values()
        for name in _awaited_starts(listed)
        for other in listed
        if other.facts.name == name
    ]
    if not awaited:
        return
    found = dict(rows(_STARTS, [awaited]))
    for listed in groups.values():
        for index, row in enumerate(listed):
            if row.facts.group_id in found:
                facts = replace(row.facts, ran=found[row.facts.group_id])
                listed[index] = replace(row, facts=facts)


def _awaited_starts(listed: Sequence[GroupRow]) -> set[str]:
    return {
        name
        for row in listed
        if row.facts.startable_at is None
        for name, until in row.facts.depends_on
        if until == "started"
    }


def find_unreleased_jobs(job_ids: Sequence[int]) -> set[int]:
    """Return the jobs among `job_ids` with an unreleased attempt."""
    found = rows(
        """
        SELECT DISTINCT job_id FROM controlplane_attempt
        WHERE job_id = ANY(%s) AND released_at IS NULL
        """,
        [list(job_ids)],
        prepare=True,
    )
    return {job_id for (job_id,) in found}


def find_open_dependencies(job_ids: Sequence[int]) -> list[tuple[int, int, str]]:
    """Return (id, job, until) of the open dependencies on `job_ids`."""
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
    job_id, state, minimum, explicit, failures, ending_as, *others, callback_on = row
    ends = None if ending_as is None else TaskState(ending_as)
    plain = (minimum, explicit, failures, ends, *others, CallbackOn(callback_on))
    return JobRow(job_id, TaskState(state), *plain)


def _group_row(row: Sequence[Any]) -> GroupRow:
    group_id, name, counts, minimum, depends_on, startable_at, excused, once, is_rest = row
    return GroupRow(
        facts=GroupFacts(
            group_id=group_id,
            name=name,
            counts={state: counts[state] for state in TaskState if counts[state]},
            min_available=minimum,
            depends_on=tuple((item["group"], item["until"]) for item in json.loads(depends_on)),
            startable_at=startable_at,
            is_rest=is_rest,
        ),
        killed_by_dependency=excused,
        at_most_once=once,
    )
