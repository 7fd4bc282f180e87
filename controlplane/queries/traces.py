"""Load pages of the history of traced jobs, with the facts from which spans are derived."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.domain.state.states import Reason
from controlplane.domain.tracing import HistoryRow
from controlplane.queries.convergence.samples import limit_range
from controlplane.queries.sql import named_rows

PAGE_ROWS = 500
"""Rows of the history in one request to the receiver; a row ends at most four spans."""

_PHASES = ", ".join(f"'{reason}'" for reason in (Reason.BUILDING, Reason.RUNNER_PHASE))

_ROWS = f"""
SELECT h.id, g.launch ->> 'trace' AS trace, h.job_id, j.name AS job_name,
       j.created_at AS submitted_at, h.task_id, g.name || '.' || t.index AS task_name,
       h.attempt_uid, a.number AS attempt_number, c.name AS cell, h.from_state, h.to_state,
       h.attempt_state, h.reason, h.message, h.at,
       entered.id AS entered_id, entered.at AS entered_at, entered.attempt_uid AS entered_uid,
       entered.reason AS entered_reason,
       before.id AS before_id, before.at AS before_at, before.message AS before_message,
       before.reason IN ({_PHASES}) AND before.message <> '' AS before_is_phase,
       a.created_at AS placed_at, a.finished_at, a.released_at,
       a.released_at IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM controlplane_transition later
           WHERE later.task_id = h.task_id AND later.id > h.id AND later.attempt_uid = h.attempt_uid
       ) AS releases
FROM controlplane_transition h
JOIN controlplane_job j ON j.id = h.job_id
LEFT JOIN controlplane_task t ON t.id = h.task_id
JOIN LATERAL (
    SELECT name, launch FROM controlplane_taskgroup
    WHERE job_id = h.job_id AND (t.id IS NULL OR id = t.group_id) ORDER BY id LIMIT 1
) g ON g.launch ? 'trace'
LEFT JOIN controlplane_attempt a ON a.uid = h.attempt_uid
LEFT JOIN controlplane_cell c ON c.id = a.cell_id
LEFT JOIN LATERAL (
    SELECT id, at, attempt_uid, reason FROM controlplane_transition
    WHERE task_id = h.task_id AND id < h.id AND to_state IS NOT NULL
      AND from_state IS DISTINCT FROM to_state ORDER BY id DESC LIMIT 1
) entered ON true
LEFT JOIN LATERAL (
    SELECT id, at, message, reason FROM controlplane_transition
    WHERE task_id = h.task_id AND id < h.id AND attempt_uid = h.attempt_uid
    ORDER BY id DESC LIMIT 1
) before ON true
WHERE h.id > %s AND h.id <= %s
ORDER BY h.id
"""


@dataclass(frozen=True, slots=True)
class TracePage:
    """The rows of traced jobs in a range of the history, up to the row `end`."""

    rows: Sequence[HistoryRow]
    end: int


def load_page(after: int, until: int) -> TracePage:
    """Return the next page behind the row `after`, up to the row `until`."""
    if after >= until:
        return TracePage((), after)
    end = limit_range(after, until, PAGE_ROWS)
    found = named_rows(_ROWS, [after, end])
    return TracePage([HistoryRow(**row._asdict()) for row in found], end)
