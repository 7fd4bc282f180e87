"""Load the newest changes of all jobs, or of the attempts of one cell, in pages by history id."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import JOB_STATES, TERMINAL, Reason
from controlplane.domain.timeline import Change
from controlplane.queries.sql import named_rows, rows
from controlplane.queries.views.history import read_change

SCANNED = 5_000
"""Rows of the history among which one page is found, whatever is filtered."""


def _numbers(*states: S) -> str:
    return ", ".join(f"{state:d}" for state in states)


_ENTERS = "h.from_state IS DISTINCT FROM h.to_state"
_FAILED = _numbers(S.FAILED, S.WORKER_FAILED, S.UNSCHEDULABLE)
_STOPPED = _numbers(S.KILLED, S.PREEMPTED)
_BY_OPERATORS = (Reason.HELD, Reason.HOLD_RELEASED, Reason.MOVED, Reason.RELEASED_BY_OPERATOR)

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "submitted": f"h.reason = '{Reason.SUBMITTED}'",
        "started": f"h.task_id IS NOT NULL AND {_ENTERS} AND h.to_state = {S.RUNNING:d}",
        "succeeded": f"{_ENTERS} AND h.to_state = {S.SUCCEEDED:d}",
        # Also of attempts, whose tasks are tried again.
        "failed": f"(h.to_state IN ({_FAILED}) AND {_ENTERS} OR h.attempt_state IN ({_FAILED}))",
        "failed tasks": f"h.task_id IS NOT NULL AND h.to_state IN ({_FAILED}) AND {_ENTERS}",
        "retried": f"h.to_state = {S.PENDING:d} AND h.attempt_state IN ({_FAILED})",
        "stopped": f"(h.to_state IN ({_STOPPED}) AND {_ENTERS} OR h.attempt_state IN ({_STOPPED}))",
        "ended jobs": f"h.task_id IS NULL AND {_ENTERS}"
        f" AND h.to_state IN ({_numbers(*sorted(JOB_STATES & TERMINAL))})",
        "held and moved": "h.reason IN (" + ", ".join(f"'{it}'" for it in _BY_OPERATORS) + ")",
    }
)
"""Kinds of changes by name: a condition on a row `h` of the history."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Changes, newest first, with the names of their jobs.

    `following`: the id before which the next page begins; None at the end.
    """

    changes: Sequence[tuple[Change, str]]
    following: int | None


@dataclass(frozen=True, slots=True)
class ActivityFilter:
    """The changes of a page: on a cell, of a kind, for a reason, and since an instant."""

    cell_id: int | None = None
    kind: str | None = None
    reason: str | None = None
    since: datetime | None = None


def load_activity(wanted: ActivityFilter, *, before: int | None = None, limit: int) -> Activity:
    """Return at most `limit` changes that are older than `before`, and fewer if few match.

    A page reads at most 5,000 rows of the history; the next one continues after them.
    """
    values = {
        "before": (1 << 63) - 1 if before is None else before,
        "cell": wanted.cell_id,
        "reason": wanted.reason,
        "since": wanted.since,
    }
    found = named_rows(
        f"""
        SELECT h.id, h.job_id, h.task_id, g.name || '.' || t.index AS task_name, h.attempt_uid,
               a.number AS attempt_number, c.name AS cell, h.from_state, h.to_state,
               h.attempt_state, h.reason, h.message, h.actor, h.at, h.job_name
        FROM (
            SELECT h.*, j.name AS job_name FROM (
                SELECT * FROM controlplane_transition WHERE id < %(before)s
                ORDER BY id DESC LIMIT {SCANNED}
            ) h
            JOIN controlplane_job j ON j.id = h.job_id AND j.deleted_at IS NULL
            WHERE {KINDS[wanted.kind] if wanted.kind else "true"}
              AND (%(reason)s::text IS NULL OR h.reason = %(reason)s)
              AND (%(since)s::timestamptz IS NULL OR h.at >= %(since)s)
              -- Not EXISTS, for which all attempts of the cell are read.
              AND (%(cell)s::bigint IS NULL OR %(cell)s = (
                SELECT a.cell_id FROM controlplane_attempt a WHERE a.uid = h.attempt_uid))
            ORDER BY h.id DESC LIMIT {limit}
        ) h
        LEFT JOIN controlplane_task t ON t.id = h.task_id
        LEFT JOIN controlplane_taskgroup g ON g.id = t.group_id
        LEFT JOIN controlplane_attempt a ON a.uid = h.attempt_uid
        LEFT JOIN controlplane_cell c ON c.id = a.cell_id
        ORDER BY h.id DESC
        """,
        values,
    )
    changes = [(read_change(row[:-1]), row.job_name) for row in found]
    if len(found) == limit:
        return Activity(changes, found[-1].id)
    last = rows(
        f"""
        SELECT id, at FROM controlplane_transition WHERE id < %(before)s
        ORDER BY id DESC OFFSET {SCANNED - 1} LIMIT 1
        """,
        values,
    )
    is_end = not last or (wanted.since is not None and last[0][1] < wanted.since)
    return Activity(changes, None if is_end else last[0][0])
