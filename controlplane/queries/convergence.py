"""What may be wrong: each rule's candidates, in pages, and whether any rule has work at all."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import starmap
from typing import Any
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.convergence.stuck_stops import ClearedCell
from controlplane.domain.snapshots import LeaseFacts
from controlplane.domain.states import JOB_STATES, OPEN, TERMINAL, CellState, Quarantine
from controlplane.queries.sql import rows


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that a rule may have to end, with the attempt that it looked at."""

    job_id: int
    task_id: int
    uid: UUID | None


def list_silent_leases(now: datetime) -> list[LeaseFacts]:
    """Cells that are not LOST and whose lease is over, as we see it."""
    statement = f"""
        SELECT c.id, c.name, c.state, c.incarnation, l.last_heard_at, l.expires_at,
               l.silent_ticks {_OTHER_WORK["silent_leases"]} ORDER BY c.id
        """
    found = rows(statement, {"now": now})
    return [
        LeaseFacts(cell_id, name, CellState(state), *rest) for cell_id, name, state, *rest in found
    ]


_CANDIDATES = {
    "attempts_of_lost_cells": """
        FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.released_at IS NULL AND (c.state = 'LOST' OR a.incarnation <> c.incarnation)
          -- Exclusive ones are ended at once and released later, strict ones never by this.
          AND (a.finished_at IS NULL OR g.exclusive = '' OR a.releasable_at <= %(now)s
               OR (g.exclusive = 'lease' AND a.releasable_at IS NULL))
        """,
    "unanswered": """
        FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.released_at IS NULL AND a.state = 9 AND a.start_before <= %(now)s
          AND NOT g.at_most_once
        """,
    "stuck_builds": """
        FROM controlplane_attempt a
        JOIN controlplane_cell c ON c.id = a.cell_id
        JOIN controlplane_pool p ON p.id = c.pool_id
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.released_at IS NULL AND a.state = 2
          AND a.state_since + make_interval(secs => CASE a.phase
                WHEN 'pulling' THEN p.pull_timeout_seconds
                WHEN 'checking' THEN p.create_timeout_seconds
                  + (g.launch #>> '{health_check,start_period_seconds}')::float8
                ELSE p.create_timeout_seconds END)
              <= %(now)s
        """,
    "overruns": """
        FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.released_at IS NULL AND a.state = 3 AND g.timeout_seconds IS NOT NULL
          AND a.started_at + make_interval(secs => g.timeout_seconds + %(grace)s) <= %(now)s
        """,
    "drained": """
        FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.released_at IS NULL AND a.finished_at IS NULL AND NOT g.at_most_once
          AND c.ordered_state = 'DRAINING' AND c.drain_deadline_at <= %(now)s
          AND c.state <> 'LOST' AND a.incarnation = c.incarnation
        """,
    "unplaced": """
        FROM controlplane_taskgroup g
        JOIN (SELECT id AS task_id, job_id, group_id, attempt_uid AS uid, started_at, state
              FROM controlplane_task) a ON a.group_id = g.id
        JOIN controlplane_job j ON j.id = g.job_id AND j.ending_as IS NULL
        WHERE g.deadline_at <= %(covered)s AND a.state = 1 AND a.started_at IS NULL
        """,
}
"""Where each rule that ends attempts or tasks finds its candidates. `covered`: see TickState."""

_OVERDUE_STOP = """
    a.released_at IS NULL AND a.finished_at IS NOT NULL AND a.finished_at + make_interval(
        secs => COALESCE((g.launch->>'stop_grace_seconds')::float, 10) + %(patience)s) <= %(now)s
    """

_UNSUCCESSFUL = ", ".join(
    str(int(state)) for state in sorted((JOB_STATES & TERMINAL) - {TaskState.SUCCEEDED})
)

# Arrays count from 1 there, and states from 0.
_HAS_ENDED = " AND ".join(f"d.counts[{int(state) + 1}] = 0" for state in sorted(OPEN))

_OTHER_WORK = {
    "silent_leases": """
        FROM controlplane_celllease l JOIN controlplane_cell c ON c.id = l.cell_id
        WHERE l.expires_at <= %(now)s AND c.state <> 'LOST'
          -- Since then something came through every shard: we would have heard the cell, too.
          AND l.expires_at <= (SELECT min(heard_at) FROM controlplane_inboxprobe)
        """,
    "stuck_stops": f"""
        FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE c.state IN ('READY', 'CORDONED', 'DRAINING') AND a.incarnation = c.incarnation
          AND {_OVERDUE_STOP}
        """,
    "failing_cells": """
        FROM controlplane_cell c CROSS JOIN LATERAL (
            SELECT count(*) AS failures, count(DISTINCT f.job_id) AS jobs,
                   count(DISTINCT f.image) AS images, (array_agg(f.uid ORDER BY f.uid))[1] AS first
            FROM (SELECT a.uid, a.job_id, a.finished_at,
                         COALESCE(g.launch->>'image', a.job_id::text) AS image
                  FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
                  WHERE a.cell_id = c.id AND a.failure_kind = 'system'
                  ORDER BY a.uid DESC LIMIT %(failures)s) AS f
            WHERE f.finished_at > COALESCE(c.trusted_at, '-infinity')
              AND f.finished_at > %(now)s - make_interval(secs => %(window)s)
        ) AS bad
        -- In this order, and not as a join, which would read every attempt there ever was.
        WHERE c.state = 'READY' AND CASE
            WHEN bad.failures < %(failures)s OR bad.jobs < %(failed_jobs)s
              OR bad.images < %(failed_images)s THEN FALSE
            -- Since the first of them was begun there, nothing has come to run: they are in a row.
            -- From the newest on: on a cell that works, one of the first ones read has run.
            ELSE (SELECT a.uid FROM controlplane_attempt a
                  WHERE a.uid > bad.first AND a.cell_id = c.id
                    AND a.started_at IS NOT NULL AND a.failure_kind <> 'system'
                  ORDER BY a.uid DESC LIMIT 1) IS NULL
            END
        """,
    "cleared_cells": f"""
        FROM controlplane_cell c WHERE c.state = 'QUARANTINED' AND CASE c.quarantined_for
            WHEN 'failures' THEN c.quarantined_until <= %(now)s
            WHEN 'unfit' THEN FALSE  -- it says itself when it takes work again
            ELSE NOT EXISTS (
                SELECT 1 FROM controlplane_attempt a
                JOIN controlplane_taskgroup g ON g.id = a.group_id
                WHERE a.cell_id = c.id AND a.incarnation = c.incarnation AND {_OVERDUE_STOP})
            END
        """,
    # The subject of such an alert is "attempt <uid>".
    "held_attempts": """
        FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
        JOIN controlplane_taskgroup g ON g.id = a.group_id AND g.exclusive = 'strict'
        WHERE a.released_at IS NULL AND a.finished_at IS NOT NULL
          AND (c.state = 'LOST' OR a.incarnation <> c.incarnation)
          AND NOT EXISTS (SELECT 1 FROM controlplane_alert x
                          WHERE x.kind = 'exclusive_held' AND x.cleared_at IS NULL
                            AND x.subject = 'attempt ' || a.uid)
        """,
    "images": "FROM controlplane_imagefailure f WHERE true",
    "freed_attempts": """
        FROM controlplane_alert x WHERE x.kind = 'exclusive_held' AND x.cleared_at IS NULL
          AND NOT EXISTS (SELECT 1 FROM controlplane_attempt a
                          WHERE a.uid = split_part(x.subject, ' ', 2)::uuid
                            AND a.released_at IS NULL)
        """,
    "waiting_jobs": f"""
        FROM controlplane_job j
        WHERE j.has_dependencies AND j.finished_at IS NULL AND j.ending_as IS NULL
          -- Only what has ended can fail whom it let wait; of the others there may be thousands.
          AND EXISTS (SELECT 1 FROM controlplane_taskgroup g
                      CROSS JOIN jsonb_array_elements(g.depends_on) AS item
                      JOIN controlplane_taskgroup d
                        ON d.job_id = g.job_id AND d.name = item->>'group' AND {_HAS_ENDED}
                      WHERE g.job_id = j.id AND g.startable_at IS NULL
                        AND g.counts[{TaskState.PENDING + 1}] > 0)
        """,
    "blocked_jobs": """
        FROM controlplane_job j
        WHERE j.waits_for_jobs AND j.finished_at IS NULL AND j.ending_as IS NULL
          AND (NOT EXISTS (SELECT 1 FROM controlplane_jobdependency d WHERE d.job_id = j.id
                           AND d.met_at IS NULL AND d.failed_at IS NULL)
               OR EXISTS (SELECT 1 FROM controlplane_jobdependency d
                          WHERE d.job_id = j.id AND d.failed_at IS NOT NULL))
        """,
    "orphaned_jobs": f"""
        FROM controlplane_job j JOIN controlplane_job p ON p.id = j.parent_id
        WHERE j.parent_id IS NOT NULL AND j.finished_at IS NULL AND j.ending_as IS NULL
          AND coalesce(p.ending_as, p.state) IN ({_UNSUCCESSFUL})
        """,
    "bouncing_jobs": """
        FROM controlplane_job j WHERE j.is_bouncing AND j.finished_at IS NULL
        """,
    "deleted_jobs": f"""
        FROM controlplane_job j WHERE j.deleted_at IS NOT NULL AND j.settled_at IS NOT NULL
          -- Whom it takes along must have been told: without its row nobody would know.
          AND NOT EXISTS (SELECT 1 FROM controlplane_job c
                          WHERE c.parent_id = j.id AND c.finished_at IS NULL
                            AND c.ending_as IS NULL AND j.state IN ({_UNSUCCESSFUL}))
        """,
    "ending_jobs": """
        FROM controlplane_job j WHERE j.ending_as IS NOT NULL AND j.finished_at IS NULL
        """,
    "unsettled_jobs": """
        FROM controlplane_job j
        WHERE j.finished_at IS NOT NULL AND j.settled_at IS NULL AND NOT EXISTS (
            SELECT 1 FROM controlplane_attempt a WHERE a.job_id = j.id AND a.released_at IS NULL)
        """,
}


def find_due(
    now: datetime, covered_at: datetime | None, policy: Policy, *, among: Collection[str] = ()
) -> set[str]:
    """Which rules have work, or which of those `among`: the one statement of an idle tick."""
    sources = {**_CANDIDATES, **_OTHER_WORK}
    if among:
        sources = {name: source for name, source in sources.items() if name in among}
    listed = ", ".join(f"EXISTS (SELECT 1 {source})" for source in sources.values())
    (found,) = rows(f"SELECT {listed}", _parameters(now, covered_at, policy))
    return {name for name, due in zip(sources, found, strict=True) if due}


def find_candidates(
    rule: str, *, now: datetime, covered_at: datetime | None, policy: Policy
) -> list[Candidate]:
    """One page of the rule's candidates; whoever decides looks again under the lock of the job."""
    statement = f"""
        SELECT a.job_id, a.task_id, a.uid {_CANDIDATES[rule]} ORDER BY a.task_id LIMIT %(page)s
        """
    return list(starmap(Candidate, rows(statement, _parameters(now, covered_at, policy))))


def find_drained_cells(now: datetime) -> set[int]:
    """Cells whose drain has had its time."""
    statement = """
        SELECT id FROM controlplane_cell
        WHERE ordered_state = 'DRAINING' AND drain_deadline_at <= %s
        """
    return {cell_id for (cell_id,) in rows(statement, [now])}


def find_stuck_stops(now: datetime, policy: Policy) -> list[tuple[int, str, int]]:
    """Cells with ended attempts whose stop is overdue: (cell, name, how many)."""
    statement = f"""
        SELECT c.id, c.name, count(*) {_OTHER_WORK["stuck_stops"]}
        GROUP BY c.id, c.name ORDER BY c.id
        """
    found = rows(statement, _parameters(now, None, policy))
    return [(cell_id, name, count) for cell_id, name, count in found]


def find_failing_cells(now: datetime, policy: Policy) -> list[tuple[int, str]]:
    """Cells on which the last attempts all failed for reasons of the system: (cell, name)."""
    statement = f"SELECT c.id, c.name {_OTHER_WORK['failing_cells']} ORDER BY c.id"
    found = rows(statement, _parameters(now, None, policy))
    return [(cell_id, name) for cell_id, name in found]


def find_cleared_cells(now: datetime, policy: Policy) -> list[ClearedCell]:
    """Cells whose quarantine is over: all overdue stops confirmed, or its time has passed."""
    statement = f"""
        SELECT c.id, c.name, c.quarantined_for, c.ordered_state {_OTHER_WORK["cleared_cells"]}
        ORDER BY c.id
        """
    found = rows(statement, _parameters(now, None, policy))
    return [
        ClearedCell(cell_id, name, Quarantine(cause) if cause else None, CellState(ordered))
        for cell_id, name, cause, ordered in found
    ]


def find_held_attempts() -> list[tuple[UUID, int]]:
    """Strictly exclusive attempts that ended on lost cells, without an alert: (uid, task)."""
    found = rows(f"SELECT a.uid, a.task_id {_OTHER_WORK['held_attempts']} ORDER BY a.uid")
    return [(uid, task_id) for uid, task_id in found]


def find_freed_attempts() -> list[str]:
    """Subjects of open alerts about held attempts that somebody has released."""
    return [subject for (subject,) in rows(f"SELECT x.subject {_OTHER_WORK['freed_attempts']}")]


def list_jobs_with(work: str, limit: int) -> list[int]:
    """Jobs with `work`, one of those whose names end in _jobs; oldest first."""
    statement = f"SELECT j.id {_OTHER_WORK[work]} ORDER BY j.id LIMIT %(limit)s"
    return [job_id for (job_id,) in rows(statement, {"limit": limit})]


def find_pending_of_groups(group_ids: Sequence[int], limit: int) -> list[int]:
    """PENDING tasks of groups."""
    statement = """
        SELECT id FROM controlplane_task WHERE group_id = ANY(%s) AND state = 1
        ORDER BY id LIMIT %s
        """
    return [task_id for (task_id,) in rows(statement, [list(group_ids), limit])]


def _parameters(now: datetime, covered_at: datetime | None, policy: Policy) -> dict[str, Any]:
    return {
        "now": now,
        "covered": covered_at,
        "grace": policy.timeout_grace,
        "patience": policy.stop_patience,
        "failures": policy.failures_in_a_row,
        "failed_jobs": policy.failed_jobs,
        "failed_images": policy.failed_images,
        "window": policy.failures_window,
        "page": policy.page,
    }
