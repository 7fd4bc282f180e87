"""Load due calls of hooks, with their attempts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from controlplane.domain.hooks.interface import HookEvent, LifeEvent
from controlplane.queries.sql import Row, named_rows, rows

_MOMENTS = frozenset(HookEvent)


@dataclass(frozen=True, slots=True)
class DueCall:
    """A due call. `event`: None if its attempt is gone, or its kind of event is unknown."""

    call_id: int
    kind: str
    event: LifeEvent | None


def load_due_calls(call_ids: Sequence[int]) -> list[DueCall]:
    """Return the calls `call_ids`, in that order."""
    found = named_rows(
        """
        SELECT h.id, h.kind, h.moment, h.at, a.uid, a.number, j.id AS job_id, j.name AS job,
               g.name AS "group", t.id AS task_id, t.index, c.name AS cell
        FROM controlplane_hookcall h
        LEFT JOIN (controlplane_attempt a
            JOIN controlplane_task t ON t.id = a.task_id
            JOIN controlplane_taskgroup g ON g.id = a.group_id
            JOIN controlplane_job j ON j.id = a.job_id
            JOIN controlplane_cell c ON c.id = a.cell_id) ON a.uid = h.attempt_uid
        WHERE h.id = ANY(%s)
        """,
        [list(call_ids)],
    )
    calls = {row.id: DueCall(row.id, row.kind, _event(row)) for row in found}
    return [calls[call_id] for call_id in call_ids if call_id in calls]


def _event(row: Row) -> LifeEvent | None:
    if row.uid is None or row.moment not in _MOMENTS:
        return None
    return LifeEvent(
        moment=HookEvent(row.moment),
        at=row.at,
        job_id=row.job_id,
        job=row.job,
        group=row.group,
        task_id=row.task_id,
        index=row.index,
        attempt=str(row.uid),
        number=row.number,
        cell=row.cell,
    )


def find_kinds_of_attempts(uids: Iterable[UUID], but: Iterable[str]) -> dict[UUID, str]:
    """Return the job kinds of the attempts `uids`, except the kinds in `but`."""
    found: list[tuple[Any, ...]] = rows(
        """
        SELECT a.uid, j.kind FROM controlplane_attempt a JOIN controlplane_job j ON j.id = a.job_id
        WHERE a.uid = ANY(%s) AND j.kind <> ALL(%s)
        """,
        [list(uids), list(but)],
    )
    return dict(found)


def is_any_call_due(now: datetime) -> bool:
    """Return whether an unclaimed call is due."""
    statement = """
        SELECT 1 FROM controlplane_hookcall
        WHERE claimed_until IS NULL OR claimed_until <= %s LIMIT 1
        """
    return bool(rows(statement, [now]))
