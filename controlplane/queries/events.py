"""Load changes of states for streams of events, and check where a stream may begin."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controlplane.domain.errors import CellrunError
from controlplane.queries.convergence.samples import limit_range
from controlplane.queries.history_ranges import HistoryPosition, find_row_before, load_position
from controlplane.queries.sql import Row, first_row, named_rows, scalar

PAGE_ROWS = 2_000
"""Rows of the history in one page."""

RESUMABLE = timedelta(hours=24)
"""Age of a position from which a stream may continue."""

_LAST_ID = """
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM controlplane_transition_id_seq
"""
_COLUMNS = "h.id, h.job_id, h.task_id, h.from_state, h.to_state, h.reason, h.at"
_CHANGES = "h.to_state IS NOT NULL AND h.from_state IS DISTINCT FROM h.to_state"
_IN_RANGE = f"""
    SELECT {_COLUMNS} FROM controlplane_transition h
    WHERE h.id > %(after)s AND h.id <= %(until)s AND {_CHANGES}
"""
# By job, so that each is a scan of its part of an index.
_OF_JOBS = f"""
    SELECT h.* FROM unnest(%(jobs)s::bigint[]) AS wanted (id) CROSS JOIN LATERAL (
        SELECT {_COLUMNS} FROM controlplane_transition h
        WHERE h.job_id = wanted.id AND h.id > %(after)s AND h.id <= %(until)s AND {_CHANGES}
        ORDER BY h.id LIMIT %(limit)s
    ) h ORDER BY h.id LIMIT %(limit)s
"""


class PositionGone(CellrunError):
    """Changes after the position of a stream may have been deleted, or it is of another history."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Changes of states in a range of the history, up to the row `end`, by id.

    The rows have the columns of the history, `project_id`, and `task_name` (`group.index`).
    """

    rows: Sequence[Row]
    end: int


def load_end() -> HistoryPosition:
    """Return the last id that a row of the history has got, and which transactions are open.

    The id is read first: transactions with rows up to it have numbers before `next_transaction`.
    It is not the largest stored id, which a deletion makes smaller.
    """
    end = load_last_id()
    found = load_position()
    return HistoryPosition(end, found.next_transaction, found.oldest_transaction)


def load_last_id() -> int:
    """Return the last id that a row of the history has got; also of an open transaction."""
    return int(scalar(_LAST_ID))


def load_events(after: int, until: int) -> EventPage:
    """Return the next page of changes behind the row `after`, up to the row `until`."""
    end = limit_range(after, until, PAGE_ROWS)
    return EventPage(_load(_IN_RANGE, {"after": after, "until": end}), end)


def load_events_of_jobs(job_ids: Collection[int], after: int, until: int) -> EventPage:
    """Return the next page of changes of jobs, as `load_events` does."""
    values = {"jobs": sorted(job_ids), "after": after, "until": until, "limit": PAGE_ROWS}
    found = _load(_OF_JOBS, values)
    return EventPage(found, found[-1].id if len(found) == PAGE_ROWS else until)


def _load(changes: str, values: dict[str, object]) -> list[Row]:
    return named_rows(
        f"""
        SELECT h.*, j.project_id, g.name || '.' || t.index AS task_name
        FROM ({changes}) h
        JOIN controlplane_job j ON j.id = h.job_id
        LEFT JOIN controlplane_task t ON t.id = h.task_id
        LEFT JOIN controlplane_taskgroup g ON g.id = t.group_id
        ORDER BY h.id
        """,
        values,
    )


def check_position(row_id: int, issued_at: datetime, *, now: datetime) -> None:
    """Raise PositionGone unless all changes after a position are stored that jobs still have.

    A deleted job takes its changes with it, by default a week after its end.
    """
    if issued_at < now - RESUMABLE:
        hours = RESUMABLE // timedelta(hours=1)
        raise PositionGone(f"the position is older than {hours} hours: {_BEGIN_ANEW}")
    edges = first_row(
        f"SELECT (SELECT min(id) FROM controlplane_transition) AS first, ({_LAST_ID}) AS last"
    )
    assert edges is not None
    if row_id > edges.last:
        raise PositionGone(f"the position is of another history, as after a restore: {_BEGIN_ANEW}")
    first = edges.last + 1 if edges.first is None else edges.first
    if first > row_id + 1:
        raise PositionGone(f"changes after the position were deleted: {_BEGIN_ANEW}")


_BEGIN_ANEW = "read the jobs, and begin a new stream without it"


def find_start(since: datetime, *, now: datetime) -> int:
    """Return the row after which a stream of the changes since a time begins. Raise PositionGone.

    Some changes of the minute before are included.
    """
    if since < now - RESUMABLE:
        hours = RESUMABLE // timedelta(hours=1)
        raise PositionGone(f"`since` is more than {hours} hours ago: {_BEGIN_ANEW}")
    return find_row_before(since)


def instant_of(seconds: int) -> datetime:
    """Return the instant of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)
