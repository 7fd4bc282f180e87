"""Change the enrolment of a cell: its pool, labels below `node/`, ceiling of capacity, tags."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Any

from controlplane.commands.audit import Action, AuditEntry, changed_fields, record
from controlplane.commands.state.apply import apply, register_cell
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.cells.enrolment import (
    MISMATCH,
    Claims,
    Enrolment,
    compare_claims,
    decide_held_state,
    mismatch_alert,
    own_labels,
    own_tags,
)
from controlplane.domain.errors import NotFound
from controlplane.domain.state.effects import ClearAlert, Effects
from controlplane.domain.state.states import CellState
from controlplane.models import Cell, Pool
from controlplane.spec import Fault, InvalidSpec
from controlplane.spec.limits import written


@dataclass(frozen=True, slots=True)
class EnrolmentChange:
    """New values of an enrolment; None keeps the present one."""

    pool: str | None = None
    node_labels: Mapping[str, str] | None = None
    max_capacity: Mapping[str, int] | None = None
    fixed_tags: Sequence[str] | None = None

    def differences(self, cell: Cell) -> list[str]:
        """Return the names of the fields of `cell` that would change."""
        return [name for name, _, _ in self._compared(cell)]

    def describe(self, cell: Cell) -> str:
        """Return old and new values of the fields that would change, as text."""
        return "; ".join(f"{name}: {old} -> {new}" for name, old, new in self._compared(cell))

    def changes(self, cell: Cell) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields that would change, as they are and as they would be."""
        wanted = {item.name: getattr(self, item.name) for item in fields(self)}
        given = {name: value for name, value in wanted.items() if value is not None}
        present = _present(cell)
        return changed_fields({name: present[name] for name in given}, given)

    def _compared(self, cell: Cell) -> Iterator[tuple[str, Any, Any]]:
        present = _present(cell)
        for item in fields(self):
            wanted = getattr(self, item.name)
            if wanted is not None and wanted != present[item.name]:
                yield item.name, _shown(present[item.name]), _shown(wanted)


def _present(cell: Cell) -> dict[str, Any]:
    return {
        "pool": cell.pool.name,
        "node_labels": cell.node_labels,
        "max_capacity": cell.max_capacity,
        "fixed_tags": cell.fixed_tags,
    }


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(value) or "none"
    is_amounts = all(isinstance(item, int) for item in value.values())
    items = written(value) if is_amounts else value
    return ", ".join(f"{name}={items[name]}" for name in sorted(items)) or "none"


def change_enrolment(*, name: str, change: EnrolmentChange, actor: str, now: datetime) -> None:
    """Change what operators fix of a cell; compare what it reported last with the new values.

    Write an audit line. Raise NotFound, InvalidSpec; then nothing was changed.
    """
    run_in_transaction(partial(_change, name, change, actor, now))


def _change(name: str, change: EnrolmentChange, actor: str, now: datetime) -> None:
    locked = Cell.objects.select_for_update(no_key=True, of=("self",)).select_related("pool")
    cell = locked.filter(name=name).first()
    if cell is None:
        raise NotFound(f"there is no cell {name}")
    pool = Pool.objects.filter(name=change.pool or cell.pool.name).first()
    if pool is None:
        raise InvalidSpec([Fault("pool", f"there is no pool {change.pool}")])
    text = change.describe(cell)
    if not text:
        return
    labels = cell.node_labels if change.node_labels is None else dict(change.node_labels)
    ceiling = cell.max_capacity if change.max_capacity is None else dict(change.max_capacity)
    tags = cell.fixed_tags if change.fixed_tags is None else list(change.fixed_tags)
    claims = (
        Claims.read(cell.claims)
        if cell.claims
        else Claims(
            "", own_labels(cell.labels), cell.capacity, own_tags(cell.tags, cell.fixed_tags)
        )
    )
    effective = compare_claims(Enrolment(pool.name, labels, ceiling, tags), claims)
    state, reason = decide_held_state(
        CellState(cell.state),
        CellState(cell.ordered_state),
        cell.state_reason,
        before=cell.mismatch,
        after=effective.mismatch,
        actor=actor,
    )
    facts = {
        "pool_id": pool.pk,
        "node_labels": labels,
        "max_capacity": ceiling,
        "fixed_tags": tags,
        "tags": list(effective.tags),
        "labels": dict(effective.labels),
        "capacity": dict(effective.capacity),
        "mismatch": effective.mismatch,
    }
    register_cell(cell.pk, state=state, reason=reason, facts=facts, actor=actor, now=now)
    if effective.mismatch:
        effects = Effects(alerts=[mismatch_alert(name, effective.mismatch)], frees=True)
    else:
        effects = Effects(cleared=[ClearAlert(MISMATCH, name)], frees=True)
    apply(effects, now=now)
    before, after = change.changes(cell)
    entry = AuditEntry(Action.CHANGE_CELL, f"cell {name}", text, before=before, after=after)
    record(entry, actor=actor, now=now)
