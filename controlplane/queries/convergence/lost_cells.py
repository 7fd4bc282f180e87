"""Rule 1: cells that are silent, and what they held."""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.facts import LeaseFacts, PoolSilence
from controlplane.domain.state.states import CellState, MassLoss
from controlplane.queries.convergence.parameters import parameters_of
from controlplane.queries.sql import rows

SILENT_LEASES = """
    FROM controlplane_celllease l JOIN controlplane_cell c ON c.id = l.cell_id
    WHERE l.expires_at <= %(now)s AND c.state <> 'LOST'
      -- Every shard has delivered what was sent until the last part of the lease or after it, so it
      -- would have delivered what the cell sent. Requiring the whole lease would cost a tick more.
      AND l.expires_at - make_interval(secs => %(hearing)s)
          <= (SELECT min(delivered_until) FROM controlplane_inboxprobe)
    """

HELD_LOSSES = """
    FROM controlplane_pool p WHERE p.loss_held_at IS NOT NULL
    """

# It left for good, and every attempt of it is released.
_HAS_LEFT = """
    (l.left_at IS NOT NULL AND NOT EXISTS (
        SELECT FROM controlplane_attempt a WHERE a.cell_id = c.id AND a.released_at IS NULL))
    """

# Its cell is there again, in another life, which is refused as long as this one is not lost.
_IS_REPLACED = """
    COALESCE(l.successor_at > l.last_message_at AND l.successor_at <= %(now)s, FALSE)
    """

ATTEMPTS_OF_LOST_CELLS = """
    FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND (c.state = 'LOST' OR a.incarnation <> c.incarnation)
      -- Exclusive attempts end at once and are released later; strict ones only by an operator.
      AND (a.finished_at IS NULL OR g.exclusive = '' OR a.releasable_at <= %(now)s
           OR (g.exclusive = 'lease' AND a.releasable_at IS NULL))
    """

# The subject of such an alert is "attempt <uid>".
HELD_ATTEMPTS = """
    FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id AND g.exclusive = 'strict'
    WHERE a.released_at IS NULL AND a.finished_at IS NOT NULL
      AND (c.state = 'LOST' OR a.incarnation <> c.incarnation)
      AND NOT EXISTS (SELECT 1 FROM controlplane_alert x
                      WHERE x.kind = 'exclusive_held' AND x.cleared_at IS NULL
                        AND x.subject = 'attempt ' || a.uid)
    """

FREED_ATTEMPTS = """
    FROM controlplane_alert x WHERE x.kind = 'exclusive_held' AND x.cleared_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM controlplane_attempt a
                      WHERE a.uid = split_part(x.subject, ' ', 2)::uuid
                        AND a.released_at IS NULL)
    """


def lock_silent_cells(now: datetime, policy: Policy) -> None:
    """Lock the leases of silent cells, and the pools that may lose some, against new messages.

    Cells before leases, as registrations lock them; pools after cells, as placement does.
    """
    parameters = parameters_of(now, None, policy)
    found = rows(
        f"""
        SELECT c.id, c.pool_id
        FROM controlplane_cell c JOIN controlplane_celllease l ON l.cell_id = c.id
        WHERE c.state <> 'LOST' AND l.silent_ticks > 0
          AND c.pool_id IN (SELECT c.pool_id {SILENT_LEASES} UNION SELECT p.id {HELD_LOSSES})
        ORDER BY c.id FOR NO KEY UPDATE OF c
        """,
        parameters,
    )
    rows(
        """
        SELECT FROM controlplane_celllease WHERE cell_id = ANY(%s)
        ORDER BY cell_id FOR NO KEY UPDATE
        """,
        [[cell_id for cell_id, _ in found]],
    )
    rows(
        """
        SELECT FROM controlplane_pool WHERE id = ANY(%s) OR loss_held_at IS NOT NULL
        ORDER BY id FOR NO KEY UPDATE
        """,
        [sorted({pool_id for _, pool_id in found})],
    )


def list_silent_leases(now: datetime, policy: Policy) -> list[LeaseFacts]:
    """Cells that are not LOST and whose lease is over, as we see it."""
    statement = f"""
        SELECT c.id, c.name, c.state, c.incarnation, l.last_message_at, l.expires_at,
               l.silent_ticks, c.pool_id, {_HAS_LEFT}, {_IS_REPLACED}
        {SILENT_LEASES} ORDER BY c.id
        """
    found = rows(statement, parameters_of(now, None, policy))
    return [
        LeaseFacts(cell_id, name, CellState(state), *rest) for cell_id, name, state, *rest in found
    ]


def list_pool_silences(pool_ids: Iterable[int], now: datetime) -> list[PoolSilence]:
    """How silent these pools are, and those of which a loss is held back; by id.

    A cell is silent if the last tick found it so.
    """
    statement = f"""
        SELECT p.id, p.name, p.mass_loss, p.loss_held_at, p.loss_confirmed_at,
               count(l.cell_id), count(l.cell_id) FILTER (WHERE l.silent_ticks > 0),
               min(l.last_message_at) FILTER (WHERE l.silent_ticks > 0)
        FROM controlplane_pool p LEFT JOIN (
            controlplane_cell c JOIN controlplane_celllease l ON l.cell_id = c.id
        ) ON c.pool_id = p.id AND c.state NOT IN ('LOST', 'DRAINING') AND NOT {_HAS_LEFT}
             AND NOT (l.silent_ticks > 0 AND {_IS_REPLACED})
             AND (l.silent_ticks = 0 OR p.loss_confirmed_at IS NULL
                  OR p.loss_confirmed_at > %(now)s OR l.last_message_at >= p.loss_confirmed_at)
        WHERE p.id = ANY(%(pools)s) OR p.loss_held_at IS NOT NULL
        GROUP BY p.id ORDER BY p.id
        """
    found = rows(statement, {"pools": sorted(set(pool_ids)), "now": now})
    return [
        PoolSilence(pool_id, name, MassLoss(kind), *rest) for pool_id, name, kind, *rest in found
    ]


def list_silent_cells(pool_id: int) -> list[str]:
    """The names of the cells of a pool that the last tick found silent."""
    found = rows(
        """
        SELECT c.name FROM controlplane_cell c JOIN controlplane_celllease l ON l.cell_id = c.id
        WHERE c.pool_id = %s AND c.state <> 'LOST' AND l.silent_ticks > 0 ORDER BY c.name
        """,
        [pool_id],
    )
    return [name for (name,) in found]


def find_held_attempts() -> list[tuple[UUID, int]]:
    """Strictly exclusive attempts that ended on lost cells, without an alert: (uid, task)."""
    found = rows(f"SELECT a.uid, a.task_id {HELD_ATTEMPTS} ORDER BY a.uid")
    return [(uid, task_id) for uid, task_id in found]


def find_freed_attempts() -> list[str]:
    """Return the subjects of open alerts about held attempts that were released."""
    return [subject for (subject,) in rows(f"SELECT x.subject {FREED_ATTEMPTS}")]
