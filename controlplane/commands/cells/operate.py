"""Enroll, cordon, uncordon, drain and unquarantine cells."""

import secrets
from dataclasses import replace
from datetime import datetime, timedelta

from controlplane.commands.state.apply import apply
from controlplane.contract.wire.keys import encode_key
from controlplane.domain.convergence.cell_health import clear_suspicions
from controlplane.domain.convergence.policy import DRAIN_SECONDS
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.state.effects import ChangeCell, Effects
from controlplane.domain.state.states import CellState
from controlplane.models import Cell, Pool
from controlplane.queries.cells.keys import key_of

_SALT_BYTES = 16


def enroll_cell(*, name: str, pool: str, now: datetime) -> str:
    """Enroll a cell and return its key as text. An enrolled cell keeps its key. Raise NotFound."""
    home = Pool.objects.filter(name=pool).first()
    if home is None:
        raise NotFound(f"there is no pool {pool!r}")
    cell, _ = Cell.objects.get_or_create(
        name=name,
        defaults={
            "pool": home,
            "key_salt": secrets.token_hex(_SALT_BYTES),
            "state_reason": "never registered",
            "enrolled_at": now,
        },
    )
    return encode_key(key_of(cell))


def cordon_cell(*, name: str, actor: str, now: datetime) -> None:
    """Give the cell no new work; running attempts continue. Raise NotFound, Conflict."""
    states = frozenset({CellState.READY, CellState.DRAINING, CellState.QUARANTINED})
    _order(name, states, CellState.CORDONED, f"cordoned by {actor}", now=now)


def uncordon_cell(*, name: str, actor: str, now: datetime) -> None:
    """Give the cell work again and ignore its past failures. Raise NotFound, Conflict."""
    states = frozenset({CellState.CORDONED, CellState.DRAINING, CellState.QUARANTINED})
    _order(name, states, CellState.READY, f"uncordoned by {actor}", now=now)


def drain_cell(
    *, name: str, actor: str, now: datetime, deadline_seconds: float | None = DRAIN_SECONDS
) -> None:
    """Give the cell no new work, and evict its tasks at the deadline without charge to retries.

    `deadline_seconds`: None for no eviction; replaces the deadline of a DRAINING cell. Raise
    NotFound, Conflict.
    """
    states = frozenset(set(CellState) - {CellState.LOST})
    until = None if deadline_seconds is None else now + timedelta(seconds=deadline_seconds)
    reason = f"drained by {actor}"
    _order(name, states, CellState.DRAINING, reason, now=now, drain_deadline_at=until)


def unquarantine_cell(*, name: str, actor: str, now: datetime) -> None:
    """Return the cell to its ordered state and ignore its past failures. Raise NotFound.

    A cell that is not QUARANTINED keeps its state.
    """
    cell = _find(name)
    ordered, reason = CellState(cell.ordered_state), f"taken out of quarantine by {actor}"
    states = frozenset({CellState.QUARANTINED})
    change = ChangeCell(cell.pk, states, ordered, reason, trusted_at=now)
    apply(Effects(cells=[change], cleared=clear_suspicions(name), frees=True), now=now)


def _order(
    name: str,
    states: frozenset[CellState],
    state: CellState,
    reason: str,
    *,
    now: datetime,
    drain_deadline_at: datetime | None = None,
) -> None:
    cell = _find(name)
    if cell.state == state and state is not CellState.DRAINING and cell.ordered_state == state:
        return
    change = ChangeCell(
        cell.pk,
        states | {state},
        state,
        reason,
        ordered=state,
        drain_deadline_at=drain_deadline_at,
        trusted_at=now if state is CellState.READY else None,
        cleared=clear_suspicions(name),  # convergence raises them again if their cause persists
    )
    # A LOST cell gets the ordered state when it registers again.
    lost = CellState.LOST
    waits = replace(
        change, states=frozenset({lost}), state=lost, reason=cell.state_reason, trusted_at=None
    )
    if not apply(Effects(cells=[change, waits]), now=now).moved:
        raise Conflict(f"cell {name} is {cell.state} and cannot become {state}")


def _find(name: str) -> Cell:
    cell = Cell.objects.filter(name=name).first()
    if cell is None:
        raise NotFound(f"there is no cell {name!r}")
    return cell
