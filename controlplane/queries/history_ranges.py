"""Find ranges of the history by time, and what is settled in it.

Ids of the history are not in the order of commits. Within a job they are.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.queries.sql import first_row, rows, scalar
from controlplane.spec import Fault, InvalidSpec

MAX_CHANGED_ROWS = 100_000
"""Rows of the history in which changed jobs are searched."""

# A transaction reads the clock, and gets the ids of its rows later, but sooner than this.
_SKEW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class HistoryPosition:
    """The end of the history, and which transactions were open when it was read.

    `next_transaction`: no transaction had this number yet. `oldest_transaction`: all earlier ones
    have ended.
    """

    end: int
    next_transaction: int
    oldest_transaction: int = 0

    def settles(self, earlier: "HistoryPosition") -> bool:
        """Return whether no row up to the end of `earlier` is missing any more.

        Each transaction that adds rows has locked or written their jobs before, so it had its
        number when it got the ids of the rows.
        """
        return self.oldest_transaction >= earlier.next_transaction


def load_position() -> HistoryPosition:
    """Return the present end of the history, outside of transactions.

    The end of a snapshot is only the number behind the last transaction that has *ended*: the
    newest open ones may be beyond it. The distance to the next number, which `age` returns, is
    read after the snapshot. In a transaction it would be the distance to its own number.
    """
    ((end, next_transaction, oldest),) = rows(
        """
        SELECT COALESCE((SELECT max(id) FROM controlplane_transition), 0),
               pg_snapshot_xmax(s)::text::bigint + age(pg_snapshot_xmax(s)::xid),
               pg_snapshot_xmin(s)::text::bigint
        FROM pg_current_snapshot() s
        """
    )
    return HistoryPosition(end, next_transaction, oldest)


def find_row_before(instant: datetime) -> int:
    """Return the id of a row before all rows of `instant` and later, and not much earlier."""
    edges = first_row("SELECT min(id) AS first, max(id) AS last FROM controlplane_transition")
    if edges is None or edges.first is None:
        return 0
    low, high = edges.first - 1, edges.last
    while low < high:
        middle = (low + high) // 2
        found = first_row(
            "SELECT id, at FROM controlplane_transition WHERE id > %s ORDER BY id LIMIT 1",
            [middle],
        )
        if found is not None and found.at < instant - _SKEW:
            low = found.id
        else:
            high = middle
    return int(low)


def find_changed_jobs(since: datetime) -> list[int]:
    """Return the ids of the jobs whose own state has changed since then. Raise InvalidSpec.

    They are found by the rows of the history, so they are bounded by the number of those.
    """
    start = find_row_before(since)
    past = scalar(
        "SELECT id FROM controlplane_transition WHERE id > %s ORDER BY id OFFSET %s LIMIT 1",
        [start, MAX_CHANGED_ROWS],
    )
    if past is not None:
        text = (
            f"must be later: the history has more than {MAX_CHANGED_ROWS:,} changes since then;"
            " follow /events instead"
        )
        raise InvalidSpec([Fault("since", text)])
    found = rows(
        """
        SELECT DISTINCT job_id FROM controlplane_transition
        WHERE id > %s AND task_id IS NULL AND at >= %s
          AND to_state IS NOT NULL AND from_state IS DISTINCT FROM to_state
        """,
        [start, since],
    )
    return [job_id for (job_id,) in found]
