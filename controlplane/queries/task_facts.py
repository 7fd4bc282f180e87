"""Load tasks with their budgets and current attempts for decisions."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from uuid import UUID

from controlplane.contract.states import STATE_OF
from controlplane.domain.state.facts import AttemptFacts, TaskFacts
from controlplane.domain.state.retry_rules import RetryRule, read_rules
from controlplane.domain.state.states import Exclusive
from controlplane.domain.state.transitions import Counters, RetryLimits
from controlplane.queries.sql import rows

_FACTS = """
SELECT t.id, t.group_id, t.job_id, t.state,
       t.failure_count, t.preemption_count, t.system_failure_count, t.system_row, t.refusal_row,
       t.consecutive_crashes,
       g.retries_failure, g.retries_preemption, g.retries_system, g.retry_permanent,
       a.uid, a.cell_id, a.incarnation, a.state, a.phase, a.report_seq, a.created_at,
       a.start_before, a.started_at, a.released_at, a.releasable_at,
       a.stop_forced_at IS NOT NULL, a.phase_number, g.at_most_once, g.exclusive,
       g.timeout_is_lifetime, t.avoid_cell_ids, g.retry_rules::text,
       CASE WHEN g.retry_rules IS NOT NULL THEN COALESCE(t.resources, g.resources)::text END
FROM controlplane_task t
JOIN controlplane_taskgroup g ON g.id = t.group_id
LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid AND a.task_id = t.id
"""


def load_facts_of_attempts(uids: Sequence[UUID]) -> dict[UUID, TaskFacts]:
    """Return the tasks whose current attempt is one of `uids`, by that uid."""
    found = rows(
        _FACTS.replace("LEFT JOIN", "JOIN") + "WHERE a.uid = ANY(%s)",
        [list(uids)],
        prepare=True,
    )
    facts = map(_task_facts, found)
    return {item.attempt.uid: item for item in facts if item.attempt is not None}


def load_facts_of_tasks(task_ids: Sequence[int]) -> list[TaskFacts]:
    """Return the tasks `task_ids`, in the order of ids."""
    found = rows(_FACTS + "WHERE t.id = ANY(%s) ORDER BY t.id", [list(task_ids)])
    return [_task_facts(row) for row in found]


def find_jobs_of_attempts(uids: Sequence[UUID]) -> dict[UUID, int]:
    """Return the job of each attempt `uids`, without unknown ones."""
    statement = "SELECT uid, job_id FROM controlplane_attempt WHERE uid = ANY(%s)"
    return dict(rows(statement, [list(uids)], prepare=True))


_EXCLUSIVE = MappingProxyType({kind.value: kind for kind in Exclusive})

# Most counters are equal: most tasks have no failure, and tasks of a group have equal limits.
_counters = lru_cache(maxsize=1024)(Counters)
_limits = lru_cache(maxsize=1024)(RetryLimits)


@lru_cache(maxsize=1024)
def _retry_rules(text: str | None) -> tuple[RetryRule, ...]:
    return () if text is None else read_rules(json.loads(text))


@lru_cache(maxsize=1024)
def _resources(text: str | None) -> Mapping[str, int] | None:
    """Return a request; None: it is not needed, or damaged, which must not stop its reports."""
    found = None if text is None else json.loads(text)
    if not isinstance(found, dict) or not all(isinstance(it, int) for it in found.values()):
        return None
    return MappingProxyType(found)


def _task_facts(row: tuple[Any, ...]) -> TaskFacts:
    return TaskFacts(
        task_id=row[0],
        group_id=row[1],
        job_id=row[2],
        state=STATE_OF[row[3]],
        counters=_counters(*row[4:10]),
        limits=_limits(*row[10:14]),
        attempt=None if row[14] is None else _attempt_facts(row[14:27]),
        at_most_once=row[27],
        exclusive=_EXCLUSIVE[row[28]],
        timeout_is_lifetime=row[29],
        avoid_cell_ids=tuple(row[30] or ()),
        retry_rules=_retry_rules(row[31]),
        resources=_resources(row[32]),
    )


def _attempt_facts(row: tuple[Any, ...]) -> AttemptFacts:
    uid, cell_id, incarnation, state, *rest = row
    return AttemptFacts(uid, cell_id, incarnation, STATE_OF[state], *rest)
