"""Record the changes of cells: one row for each new state and each order of an operator."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.queries.sql import execute, named_rows

_RECORD = """
INSERT INTO controlplane_cellchange (cell_id, at, from_state, to_state, reason, actor)
SELECT c.id, %(at)s, i.state, c.state, left(coalesce(i.reason, c.state_reason), 255), i.actor
FROM unnest(%(cell_id)s::bigint[], %(state)s::text[], %(reason)s::text[], %(actor)s::text[],
            %(is_order)s::boolean[]) AS i(id, state, reason, actor, is_order)
JOIN controlplane_cell c ON c.id = i.id
WHERE i.is_order OR c.state <> i.state ORDER BY c.id
"""


@dataclass(frozen=True, slots=True)
class CellBefore:
    """A locked cell before its change."""

    id: int
    state: str
    draining_since: datetime | None


@dataclass(frozen=True, slots=True)
class CellChangeNote:
    """A change to record. `reason`: None takes that of the new state.

    `is_order`: whether an operator ordered it, which is recorded even if the state remains.
    """

    before: CellBefore
    reason: str | None = None
    actor: str = ""
    is_order: bool = False


def lock_cells_before(cell_ids: Iterable[int]) -> Mapping[int, CellBefore]:
    """Lock cells in the order of their ids, and return them as they are."""
    found = named_rows(
        """
        SELECT id, state, draining_since FROM controlplane_cell WHERE id = ANY(%s)
        ORDER BY id FOR NO KEY UPDATE
        """,
        [sorted(set(cell_ids))],
    )
    return {row.id: CellBefore(*row) for row in found}


def record_cell_changes(notes: Sequence[CellChangeNote], *, now: datetime) -> None:
    """Record changes that have been written; skip those that left the state as it was."""
    if notes:
        parameters = {
            "at": now,
            "cell_id": [note.before.id for note in notes],
            "state": [note.before.state for note in notes],
            "reason": [note.reason for note in notes],
            "actor": [note.actor[:150] for note in notes],
            "is_order": [note.is_order for note in notes],
        }
        execute(_RECORD, parameters)
