"""Rules 1 to 6: the tasks whose time limits have passed, a statement for each rule.

`parameters`: of `parameters_of`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from types import MappingProxyType
from typing import Any
from uuid import UUID

from controlplane.contract.states import TaskState as S
from controlplane.queries.convergence.cell_health import UNCONFIRMED_STOPS
from controlplane.queries.convergence.lost_cells import ATTEMPTS_OF_LOST_CELLS
from controlplane.queries.holds import IS_HELD, TIME_IN_HOLDS
from controlplane.queries.sql import rows

UNANSWERED = f"""
    FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.state = {S.ASSIGNED:d} AND a.start_before <= %(now)s
      AND NOT g.at_most_once
    """

_START_PERIOD = "COALESCE((g.launch #>> '{health_check,start_period_seconds}')::float8, 0)"

BUILD_ENDS_AT = f"""
    LEAST(a.state_since + make_interval(secs => CASE a.phase
        WHEN 'pulling' THEN p.pull_timeout_seconds
        -- The attempt may queue in its cell behind the pulls and creations of others.
        WHEN 'preparing' THEN NULL
        WHEN 'checking' THEN p.create_timeout_seconds + {_START_PERIOD}
        ELSE p.create_timeout_seconds END),
    -- Each of the four phases once, so that alternating phases do not extend the limit.
    a.start_before + make_interval(
        secs => p.pull_timeout_seconds + 3 * p.create_timeout_seconds + {_START_PERIOD}))
    """
"""Until when an attempt `a` of group `g` in pool `p` may be BUILDING, in its phase and in all.

`state_since` is when the attempt entered its phase, as the control plane learned it. `preparing`
has no limit of its own: that of the whole build holds.
"""

STUCK_BUILDS = f"""
    FROM controlplane_attempt a
    JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_pool p ON p.id = c.pool_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.state = {S.BUILDING:d} AND {BUILD_ENDS_AT} <= %(now)s
    """

OVERRUNS = f"""
    FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.state = {S.RUNNING:d} AND g.timeout_seconds IS NOT NULL
      AND a.started_at + make_interval(secs => g.timeout_seconds + %(grace)s) <= %(now)s
    """

DRAINED = """
    FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.finished_at IS NULL AND NOT g.at_most_once
      AND c.ordered_state = 'DRAINING' AND c.drain_deadline_at <= %(now)s
      AND c.state <> 'LOST' AND a.incarnation = c.incarnation
    """

# A job's own timeout wins. For other jobs the timeout that their pool has now counts, and for
# one-off tasks of a pool that has none, the installation's, which stands in the group.
_DEADLINE_WITHOUT_HOLDS = """
    CASE WHEN g.deadline_at IS NULL OR j.is_one_off THEN COALESCE(
        g.startable_at + make_interval(secs => p.pending_timeout_seconds), g.deadline_at)
    ELSE g.deadline_at END
    """
DEADLINE = f"({_DEADLINE_WITHOUT_HOLDS} + {TIME_IN_HOLDS})"
"""The scheduling deadline of group `g` of job `j` in pool `p`. Released holds extend it."""

_IS_OVER = f"({_DEADLINE_WITHOUT_HOLDS} <= p.judged AND {DEADLINE} <= p.judged)"

# Deadlines are judged up to the last pass that considered all pending tasks of the pool. The
# instant of that pass is in the future if the clock was put back.
_JUDGED = """
    CASE WHEN %(covered)s::timestamptz IS NOT NULL
         THEN LEAST(%(covered)s::timestamptz, %(now)s, uncovered_since) END
    """
# OFFSET has the instants computed once for each pool, not for each group.
_POOLS = f"""
    SELECT id, pending_timeout_seconds, {_JUDGED} AS judged,
           {_JUDGED} - make_interval(secs => pending_timeout_seconds) AS judged_starts
    FROM controlplane_pool OFFSET 0
    """
_WAITS = f"t.state = {S.PENDING:d} AND t.started_at IS NULL"

# The first branch goes from the groups that wait, which the index of waiting tasks has, to their
# deadlines. OFFSET keeps that order: most deadlines belong to what is over. Job and tasks are read
# only for groups of which one of the two possible deadlines is over; otherwise PostgreSQL, with old
# statistics, joins all waiting tasks of a shape with all its groups. The second branch goes by the
# index of held attempts: tasks that wait again while their last attempt is not released.
UNPLACED = f"""
    FROM (
        WITH w AS MATERIALIZED (
            SELECT shape_id, group_id FROM controlplane_task
            WHERE state = {S.PENDING:d} AND NOT attempt_open GROUP BY shape_id, group_id)
        SELECT t.id AS task_id, t.job_id, t.attempt_uid AS uid
        FROM w
        JOIN controlplane_shape s ON s.id = w.shape_id
        JOIN ({_POOLS}) p ON p.id = s.pool_id
        CROSS JOIN LATERAL (
            SELECT g.id, g.job_id, g.deadline_at, g.startable_at FROM controlplane_taskgroup g
            WHERE g.id = w.group_id
              AND (g.deadline_at <= p.judged OR g.startable_at <= p.judged_starts)
            OFFSET 0) g
        JOIN controlplane_job j ON j.id = g.job_id AND {_IS_OVER}
        CROSS JOIN LATERAL (
            SELECT t.id, t.job_id, t.attempt_uid FROM controlplane_task t
            WHERE t.shape_id = w.shape_id AND t.group_id = g.id AND {_WAITS} AND NOT t.attempt_open
            OFFSET 0) t
        UNION ALL
        SELECT t.id, t.job_id, t.attempt_uid
        FROM controlplane_attempt h JOIN controlplane_task t ON t.id = h.task_id
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        JOIN controlplane_job j ON j.id = t.job_id
        JOIN ({_POOLS}) p ON p.id = j.pool_id
        WHERE {_IS_OVER} AND {_WAITS}
          AND t.attempt_open AND h.released_at IS NULL AND h.finished_at IS NOT NULL
    ) a
    JOIN controlplane_job j ON j.id = a.job_id
    WHERE j.ending_as IS NULL AND NOT {IS_HELD}
    """

CANDIDATES = MappingProxyType(
    {
        "attempts_of_lost_cells": ATTEMPTS_OF_LOST_CELLS,
        "unanswered": UNANSWERED,
        "stuck_builds": STUCK_BUILDS,
        "overruns": OVERRUNS,
        "drained": DRAINED,
        "unplaced": UNPLACED,
        "unconfirmed_stops": UNCONFIRMED_STOPS,
    }
)
"""The candidates of each rule of `domain.convergence.task_rules`, by its name."""


@dataclass(frozen=True, slots=True)
class DueTask:
    """A task that a rule may have to end, with the attempt that was read."""

    job_id: int
    task_id: int
    uid: UUID | None


def find_candidates(rule: str, parameters: Mapping[str, Any], *, after: int = 0) -> list[DueTask]:
    """Return the rule's candidates behind the task `after`, one page; the decision checks them
    again.
    """
    statement = f"""
        SELECT a.job_id, a.task_id, a.uid {CANDIDATES[rule]} AND a.task_id > %(after)s
        ORDER BY a.task_id LIMIT %(page)s
        """
    return list(starmap(DueTask, rows(statement, {**parameters, "after": after})))


def pick_candidates(
    rule: str, parameters: Mapping[str, Any], task_ids: Sequence[int]
) -> dict[int, UUID | None]:
    """Return those of some tasks that are still candidates, under the locks of their jobs.

    With the attempt that was read: a report may have come in between.
    """
    statement = f"""
        SELECT a.task_id, a.uid {CANDIDATES[rule]} AND a.task_id = ANY(%(ids)s::bigint[])
        """
    return dict(rows(statement, {**parameters, "ids": list(task_ids)}))
