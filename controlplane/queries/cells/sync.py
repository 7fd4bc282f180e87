"""Load the expected attempts of cells, for the answers to their heartbeats."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from controlplane.contract.states import STATE_OF
from controlplane.domain.cells.exec_sessions import ExecState
from controlplane.domain.cells.sync import ExpectedAttempt, GrownSpec
from controlplane.domain.state.states import TERMINAL, CellState
from controlplane.queries.sql import decoded, rows


@dataclass(frozen=True, slots=True)
class CellStatus:
    """The state of a cell in the control plane."""

    cell_id: int
    state: CellState
    incarnation: str
    acked_seq: int
    heartbeat_seq: int
    ordered_state: CellState
    quarantined_for: str
    quarantined_until: datetime | None


class CellStandings(NamedTuple):
    """Cells that have ever registered, by id, and what else there is to load for their answers.

    `has_attempts`: one of the cells has an unreleased attempt; `has_execs`: any cell has an exec
    session that it has not claimed.
    """

    cells: dict[int, CellStatus]
    has_attempts: bool
    has_execs: bool


def load_standings(cell_ids: Sequence[int]) -> CellStandings:
    """Return the status of the cells."""
    statement = f"""
        SELECT c.id, c.state, c.incarnation, l.acked_seq, l.heartbeat_seq, c.ordered_state,
               c.quarantined_for, c.quarantined_until,
               EXISTS (SELECT FROM controlplane_attempt a
                       WHERE a.cell_id = ANY(%(cells)s::bigint[]) AND a.released_at IS NULL),
               EXISTS (SELECT FROM controlplane_execsession
                       WHERE ended_at IS NULL AND state = {ExecState.REQUESTED:d})
        FROM controlplane_cell c JOIN controlplane_celllease l ON l.cell_id = c.id
        WHERE c.id = ANY(%(cells)s::bigint[])
        """
    found = rows(statement, {"cells": list(cell_ids)})
    cells = {
        cell_id: CellStatus(
            cell_id, CellState(state), incarnation, acked, beat, CellState(ordered), *cause
        )
        for cell_id, state, incarnation, acked, beat, ordered, *cause, _, _ in found
    }
    has_attempts, has_execs = found[0][-2:] if found else (False, False)
    return CellStandings(cells, has_attempts, has_execs)


def load_unreleased(cell_ids: Iterable[int]) -> dict[int, dict[str, bool]]:
    """Return the unreleased attempts of each cell's current incarnation, and whether each ended.

    A cell sends a heartbeat with all its attempts every few seconds, and few of them differ: only
    for these, `load_expected` reads what an order needs. An attempt without its task is stopped
    once convergence has deleted it.
    """
    found = rows(
        """
        SELECT a.cell_id, a.uid::text, a.state = ANY(%s)
        FROM controlplane_attempt a
        JOIN controlplane_cell c ON c.id = a.cell_id AND c.incarnation = a.incarnation
        WHERE a.cell_id = ANY(%s) AND a.released_at IS NULL
        """,
        [sorted(TERMINAL), list(cell_ids)],
    )
    unreleased: dict[int, dict[str, bool]] = {}
    for cell_id, uid, has_ended in found:
        unreleased.setdefault(cell_id, {})[uid] = has_ended
    return unreleased


def load_expected(
    uids: Iterable[str],
) -> tuple[dict[int, list[ExpectedAttempt]], dict[int, GrownSpec]]:
    """Return, by cell, those of the attempts that are still unreleased.

    Also, by id, the definitions of those whose request a retry rule increased.
    """
    found = rows(
        """
        SELECT a.cell_id, a.uid, a.group_id, a.task_id, t.index, a.number, a.state, a.created_at,
               a.start_before, a.stop_reason,
               a.stop_forced_at IS NOT NULL,
               COALESCE((g.launch->>'stop_grace_seconds')::float, 10), a.resources
        FROM controlplane_attempt a
        JOIN controlplane_cell c ON c.id = a.cell_id AND c.incarnation = a.incarnation
        JOIN controlplane_task t ON t.id = a.task_id
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.uid = ANY(%s::uuid[]) AND a.released_at IS NULL
        ORDER BY a.cell_id, a.uid
        """,
        [list(uids)],
    )
    expected: dict[int, list[ExpectedAttempt]] = {}
    grown: dict[int, GrownSpec] = {}
    for cell_id, uid, spec_id, task_id, index, number, state, *rest, resources in found:
        if resources is not None:
            spec = GrownSpec(spec_id, decoded(resources))
            spec_id = spec.spec_id
            grown[spec_id] = spec
        item = ExpectedAttempt(str(uid), spec_id, task_id, index, number, STATE_OF[state], *rest)
        expected.setdefault(cell_id, []).append(item)
    return expected, grown
