"""Rule 6: cells that cannot be relied upon, and those that can be again."""

from collections.abc import Collection
from datetime import datetime

from controlplane.domain.convergence.cell_health import (
    UNCONFIRMED,
    ClearedCell,
    FailingCell,
    StuckCell,
)
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.states import CellState, Quarantine
from controlplane.queries.convergence.parameters import parameters_of
from controlplane.queries.sql import rows

_GRACE = "COALESCE((g.launch->>'stop_grace_seconds')::float, 10)"

FORCED_AT = f"a.finished_at + make_interval(secs => {_GRACE} + %(force_patience)s)"
"""When a stop that is not confirmed is forced."""

SUSPECTED_AT = f"""
    GREATEST(a.finished_at + make_interval(secs => {_GRACE} + %(patience)s),
             a.stop_forced_at + make_interval(secs => %(patience)s - %(force_patience)s))
    """
"""When the cell of a forced stop that is not confirmed is quarantined."""

UNCONFIRMED_STOPS = f"""
    FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE c.state <> 'LOST' AND a.incarnation = c.incarnation AND a.released_at IS NULL
      AND a.finished_at IS NOT NULL AND a.stop_forced_at IS NULL AND {FORCED_AT} <= %(now)s
    """

_OVERDUE_STOP = f"""
    a.released_at IS NULL AND a.finished_at IS NOT NULL AND a.stop_forced_at IS NOT NULL
    AND {SUSPECTED_AT} <= %(now)s
    """

_HAS_ALERT = f"""
    EXISTS (SELECT 1 FROM controlplane_alert k
            WHERE k.kind = '{UNCONFIRMED}' AND k.subject = c.name AND k.cleared_at IS NULL)
    """

# Whether the time of a quarantine is over, of one that no heartbeat ends.
_IS_OVER = """
    CASE c.quarantined_for
        WHEN 'failures' THEN COALESCE(c.quarantined_until <= %(now)s, FALSE)
        WHEN 'flooding' THEN COALESCE(c.quarantined_until <= %(now)s, FALSE)
        WHEN 'unfit' THEN FALSE  -- ends when it reports that it is fit
        WHEN 'orphans' THEN FALSE  -- ends when its heartbeats list none
        ELSE TRUE
        END
    """

# Of cells in quarantine only those without an alert, or that failed, for long enough.
STUCK_STOPS = f"""
    FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE c.state <> 'LOST' AND a.incarnation = c.incarnation AND {_OVERDUE_STOP}
      AND (c.state <> 'QUARANTINED' OR NOT {_HAS_ALERT}
           OR c.quarantined_for IN ('failures', 'flooding') AND {_IS_OVER})
    """

FAILING_CELLS = """
    FROM controlplane_cell c CROSS JOIN LATERAL (
        SELECT count(*) AS failures, count(DISTINCT f.job_id) AS jobs,
               count(DISTINCT f.image) AS images, (array_agg(f.uid ORDER BY f.uid))[1] AS first,
               (array_agg(f.message ORDER BY f.uid DESC))[1] AS newest
        FROM (SELECT a.uid, a.job_id, a.finished_at, a.message,
                     COALESCE(g.launch->>'image', a.job_id::text) AS image
              FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
              WHERE a.cell_id = c.id AND a.failure_kind = 'system'
              ORDER BY a.uid DESC LIMIT %(failures)s) AS f
        WHERE f.finished_at > COALESCE(c.trusted_at, '-infinity')
          AND f.finished_at > %(now)s - make_interval(secs => %(window)s)
    ) AS bad
    -- A CASE fixes this order; a join would read every attempt of the cell.
    WHERE c.state = 'READY' AND CASE
        WHEN bad.failures < %(failures)s OR bad.jobs < %(failed_jobs)s
          OR bad.images < %(failed_images)s THEN FALSE
        -- The failures are consecutive if no other attempt has started since the first of them.
        -- The newest are read first: on a working cell, one of the first rows has started.
        ELSE (SELECT a.uid FROM controlplane_attempt a
              WHERE a.uid > bad.first AND a.cell_id = c.id
                AND a.started_at IS NOT NULL AND a.failure_kind <> 'system'
              ORDER BY a.uid DESC LIMIT 1) IS NULL
        END
    """

CLEARED_CELLS = f"""
    FROM controlplane_cell c
    WHERE c.state = 'QUARANTINED' AND ({_IS_OVER} OR {_HAS_ALERT}) AND NOT EXISTS (
        SELECT 1 FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.cell_id = c.id AND a.incarnation = c.incarnation AND {_OVERDUE_STOP})
    """


def find_stuck_stops(now: datetime, policy: Policy) -> list[StuckCell]:
    """Return cells with ended attempts whose stop is overdue, except those already handled."""
    statement = f"""
        SELECT c.id, c.name, count(*), c.state, c.state_reason, c.quarantined_for,
               c.quarantined_until {STUCK_STOPS}
        GROUP BY c.id ORDER BY c.id
        """
    found = rows(statement, parameters_of(now, None, policy))
    return [
        StuckCell(
            cell_id, name, count, CellState(state), why, Quarantine(cause) if cause else None, until
        )
        for cell_id, name, count, state, why, cause, until in found
    ]


def count_overdue_stops(cell_ids: Collection[int], now: datetime, policy: Policy) -> dict[int, int]:
    """Of some cells, by id, those with stops that are overdue, and how many."""
    statement = f"""
        SELECT c.id, count(*) FROM controlplane_attempt a
        JOIN controlplane_cell c ON c.id = a.cell_id AND c.incarnation = a.incarnation
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE c.id = ANY(%(cells)s::bigint[]) AND {_OVERDUE_STOP} GROUP BY c.id
        """
    found = rows(statement, {**parameters_of(now, None, policy), "cells": list(cell_ids)})
    return dict(found)


def find_failing_cells(now: datetime, policy: Policy) -> list[FailingCell]:
    """Return the cells on which the last attempts all failed for reasons of the system."""
    statement = f"SELECT c.id, c.name, bad.newest {FAILING_CELLS} ORDER BY c.id"
    found = rows(statement, parameters_of(now, None, policy))
    return [FailingCell(*row) for row in found]


def find_cleared_cells(now: datetime, policy: Policy) -> list[ClearedCell]:
    """Cells without an overdue stop whose quarantine is over, or whose alert of one is open."""
    statement = f"""
        SELECT c.id, c.name, c.quarantined_for, c.ordered_state, NOT {_IS_OVER} {CLEARED_CELLS}
        ORDER BY c.id
        """
    found = rows(statement, parameters_of(now, None, policy))
    return [
        ClearedCell(cell_id, name, Quarantine(cause) if cause else None, CellState(ordered), stays)
        for cell_id, name, cause, ordered, stays in found
    ]
