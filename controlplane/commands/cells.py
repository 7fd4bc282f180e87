"""Enrolling cells, and what operators do with them: cordon, uncordon, drain."""

import secrets
from datetime import datetime

from django.db import transaction

from controlplane.commands.effects import change_cells
from controlplane.contract.keys import encode_key
from controlplane.domain.effects import ChangeCell
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.states import CellState
from controlplane.models import Cell, Pool
from controlplane.outbox.wakes import wake_placement
from controlplane.queries.addresses import key_of

_SALT_BYTES = 16


def enroll_cell(*, name: str, pool: str, now: datetime) -> str:
    """Enroll a cell and return its key as text. An enrolled cell keeps its key. Raises NotFound."""
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


def cordon_cell(*, name: str, actor: str) -> None:
    """The cell gets no new work; what runs on it goes on. Raises NotFound, Conflict."""
    states = frozenset({CellState.READY, CellState.DRAINING, CellState.QUARANTINED})
    _move(name, states, CellState.CORDONED, f"cordoned by {actor}")


def uncordon_cell(*, name: str, actor: str) -> None:
    """The cell takes work again. Raises NotFound, Conflict."""
    states = frozenset({CellState.CORDONED, CellState.DRAINING, CellState.QUARANTINED})
    _move(name, states, CellState.READY, f"uncordoned by {actor}")
    transaction.on_commit(wake_placement, robust=True)


def drain_cell(*, name: str, actor: str) -> None:
    """The cell gets no new work; its work leaves by finishing. Raises NotFound, Conflict."""
    states = frozenset({CellState.READY, CellState.CORDONED, CellState.QUARANTINED})
    _move(name, states, CellState.DRAINING, f"drained by {actor}")


def _move(name: str, states: frozenset[CellState], state: CellState, reason: str) -> None:
    cell = Cell.objects.filter(name=name).first()
    if cell is None:
        raise NotFound(f"there is no cell {name!r}")
    if cell.state == state:
        return
    if not change_cells([ChangeCell(cell.pk, states, state, reason)]):
        raise Conflict(f"cell {name} is {cell.state} and cannot become {state}")
