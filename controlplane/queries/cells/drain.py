"""Load the progress of drains: the attempts that are left, and how long they may take."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.domain.state.states import CellState
from controlplane.queries.sql import named_rows

# As the cell and convergence stop them: at the timeout of the task or at the deadline of the drain,
# which is not for tasks that run at most once, and then within the grace period.
_ENDS_AT = """
    CASE WHEN a.finished_at IS NOT NULL THEN a.finished_at
         ELSE LEAST(
             COALESCE(a.started_at, a.start_before) + make_interval(secs => g.timeout_seconds),
             CASE WHEN NOT g.at_most_once THEN c.drain_deadline_at END)
    END + make_interval(secs => COALESCE((g.launch->>'stop_grace_seconds')::float8, 10))
    """


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """Attempts on a draining cell: those `left`, of `total` since the order of the drain.

    `longest_until`: when the last of them has ended at the latest; None: it has no limit.
    `empty_since`: when the last one was released, or the order without any; None: some are left.
    """

    since: datetime | None
    left: int
    total: int
    longest_until: datetime | None
    empty_since: datetime | None = None


def load_drains(cell_ids: Sequence[int]) -> dict[int, DrainProgress]:
    """Return the progress of those cells that drain and are not LOST.

    A draining cell gets no attempts, so those that it has released since the order complete the
    number at the order.
    """
    found = named_rows(
        f"""
        SELECT c.id, c.draining_since AS since, COALESCE(held.number, 0) AS number,
               COALESCE(held.is_endless, FALSE) AS is_endless, held.until,
               gone.number AS released,
               CASE WHEN held.number = 0 THEN GREATEST(c.draining_since, gone.newest) END
               AS empty_since
        FROM controlplane_cell c CROSS JOIN LATERAL (
            SELECT count(*) AS number, bool_or(l.ends_at IS NULL) AS is_endless,
                   max(l.ends_at) AS until
            FROM (SELECT {_ENDS_AT} AS ends_at
                  FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
                  WHERE a.cell_id = c.id AND a.released_at IS NULL) l
        ) held CROSS JOIN LATERAL (
            SELECT count(*) AS number, max(r.released_at) AS newest FROM controlplane_attempt r
            WHERE r.cell_id = c.id AND r.released_at >= c.draining_since
        ) gone
        WHERE c.id = ANY(%s) AND c.ordered_state = '{CellState.DRAINING}'
          AND c.state <> '{CellState.LOST}'
        """,
        [list(cell_ids)],
    )
    return {
        row.id: DrainProgress(
            row.since,
            row.number,
            row.number + row.released,
            None if row.is_endless else row.until,
            row.empty_since,
        )
        for row in found
    }
