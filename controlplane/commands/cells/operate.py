"""Enroll, revoke, cordon, uncordon, drain and unquarantine cells."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, changed_fields, record
from controlplane.commands.cells.enrolment import EnrolmentChange
from controlplane.commands.cells.redis_users import drop_users_of, put_users_of
from controlplane.commands.cells.rotation import discard_next_key
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.wire.keys import encode_key
from controlplane.contract.wire.queues import CELL_NAME, cell_queue
from controlplane.domain.cells.enrolment import MISMATCH, describe_hold
from controlplane.domain.cells.keys import SALT_BYTES
from controlplane.domain.cells.registration import ALERTS_OF_ABSENCE
from controlplane.domain.convergence.cell_health import clear_suspicions
from controlplane.domain.convergence.policy import DRAIN_SECONDS
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.scopes import DEFAULT_NAME
from controlplane.domain.state.effects import ChangeCell, ClearAlert, Effects
from controlplane.domain.state.states import CellState
from controlplane.models import Cell, Pool
from controlplane.outbox import transport
from controlplane.outbox.wakes import wake_convergence
from controlplane.queries.cells.keys import key_of, present_key_id
from controlplane.spec import Fault, InvalidSpec
from controlplane.spec.placing import OWN_TAGS


def enroll_cell(
    *,
    name: str,
    pool: str | None = None,
    node_labels: Mapping[str, str] | None = None,
    max_capacity: Mapping[str, int] | None = None,
    fixed_tags: Sequence[str] | None = None,
    renew: bool = False,
    actor: str = "",
    now: datetime,
) -> str:
    """Enroll a cell and return its key as text. An enrolled cell keeps its key, unless `renew`.

    With a renewed key the old ones are invalid at once. Raise InvalidSpec for a name that no cell
    can have; NotFound; Conflict if its key is revoked, or the cell is enrolled with other values;
    RedisUsersFailed if it is enrolled, but has no login at Redis.
    """
    if not CELL_NAME.fullmatch(name):
        text = "1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first"
        raise InvalidSpec([Fault("name", f"{name[:100]!r} is not the name of a cell: {text}")])
    wanted = EnrolmentChange(pool, node_labels, max_capacity, fixed_tags)
    key = run_in_transaction(partial(_enroll, name, wanted, renew, actor, now))
    put_users_of(name, disconnect=renew)
    return key


def _enroll(name: str, wanted: EnrolmentChange, renew: bool, actor: str, now: datetime) -> str:
    pool = wanted.pool or DEFAULT_NAME
    fixed_tags = [OWN_TAGS] if wanted.fixed_tags is None else list(wanted.fixed_tags)
    home = Pool.objects.filter(name=pool).first()
    if home is None:
        raise NotFound(f"there is no pool {pool!r}")
    cell, is_new = Cell.objects.select_for_update(no_key=True, of=("self",)).get_or_create(
        name=name,
        defaults={
            "pool": home,
            "node_labels": dict(wanted.node_labels or {}),
            "labels": dict(wanted.node_labels or {}),
            "max_capacity": dict(wanted.max_capacity or {}),
            "fixed_tags": fixed_tags,
            "tags": [tag for tag in fixed_tags if tag != OWN_TAGS],
            "key_salt": secrets.token_hex(SALT_BYTES),
            "secret_key_id": present_key_id(),
            "state_reason": "never registered",
            "enrolled_at": now,
        },
    )
    if not is_new and wanted.differences(cell):
        raise Conflict(
            f"cell {name} is enrolled with other values ({wanted.describe(cell)}): change them in"
            f" the admin or with PUT /api/v1/cells/{name}"
        )
    if not is_new and renew:
        _renew_key(cell, actor, now)
    elif cell.revoked_at is not None:
        raise Conflict(
            f"the key of cell {name} was revoked at {cell.revoked_at:%Y-%m-%d %H:%M:%S} UTC: enroll"
            " the cell with a new key (--renew)"
        )
    elif is_new:
        after = {
            "pool": pool,
            "node_labels": dict(wanted.node_labels or {}),
            "max_capacity": dict(wanted.max_capacity or {}),
            "fixed_tags": fixed_tags,
        }
        entry = AuditEntry(Action.ENROLL_CELL, f"cell {name}", after=after)
        record(entry, actor=actor, now=now)
    else:
        record(AuditEntry(Action.SHOW_CELL_KEY, f"cell {name}"), actor=actor, now=now)
    return encode_key(key_of(cell))


def _renew_key(cell: Cell, actor: str, now: datetime) -> None:
    was_revoked = cell.revoked_at is not None
    cell.key_salt, cell.revoked_at = secrets.token_hex(SALT_BYTES), None
    cell.secret_key_id = present_key_id()
    discard_next_key(cell, "key_salt", "secret_key_id", "revoked_at")
    if was_revoked:
        lost = frozenset({CellState.LOST})
        reason = "its key is renewed, and it has not registered since"
        change = ChangeCell(cell.pk, lost, CellState.LOST, reason, actor=actor)
        apply(Effects(cells=[change]), now=now)
    text = "its key was revoked before" if was_revoked else "the old key is invalid"
    entry = AuditEntry(Action.RENEW_CELL_KEY, f"cell {cell.name}", text)
    record(entry, actor=actor, now=now)


def revoke_cell(*, name: str, actor: str, reason: str = "", now: datetime) -> None:
    """Revoke the key of a cell: ignore its messages, send it none, and release its attempts.

    Its attempts are released as those of a LOST cell, exclusive ones not before its lease has
    ended. A revoked cell does not change. Raise NotFound; RedisUsersFailed if it is revoked, but
    keeps its login at Redis.
    """
    run_in_transaction(partial(_revoke, name, actor, reason.strip(), now))
    drop_users_of(name)


def _revoke(name: str, actor: str, reason: str, now: datetime) -> None:
    cell = Cell.objects.select_for_update(no_key=True).filter(name=name).first()
    if cell is None:
        raise NotFound(f"there is no cell {name!r}")
    if cell.revoked_at is not None:
        return
    why = f"revoked by {actor}" + (f": {reason}" if reason else "")
    change = ChangeCell(
        cell.pk,
        frozenset(CellState),
        CellState.LOST,
        why,
        actor=actor,
        revoked_at=now,
        cleared=(
            *clear_suspicions(name),
            *(ClearAlert(kind, name) for kind in (*ALERTS_OF_ABSENCE, MISMATCH)),
        ),
    )
    # Before the revocation: a revoked cell has no next key (cell_next_key_ends).
    discard_next_key(cell)
    apply(Effects(cells=[change]), now=now)
    entry = AuditEntry(Action.REVOKE_CELL_KEY, f"cell {name}", reason)
    record(entry, actor=actor, now=now)
    if cell.incarnation:
        queue = cell_queue(name, cell.incarnation)
        transaction.on_commit(partial(transport.drop, queue), robust=True)
    transaction.on_commit(wake_convergence, robust=True)


def cordon_cell(*, name: str, actor: str, reason: str = "", now: datetime) -> None:
    """Give the cell no new work; running attempts continue. Raise NotFound, Conflict."""
    states = frozenset({CellState.READY, CellState.DRAINING, CellState.QUARANTINED})
    order = _CellOrder(name, actor, reason.strip(), now)
    _order(order, states, CellState.CORDONED, "cordoned", Action.CORDON_CELL)


def uncordon_cell(*, name: str, actor: str, reason: str = "", now: datetime) -> None:
    """Give the cell work again and ignore its past failures. Raise NotFound, Conflict."""
    cell = _find(name)
    if cell.mismatch and cell.state != CellState.LOST:
        raise Conflict(f"cell {name} gets no work: {describe_hold(cell.mismatch)}")
    states = frozenset({CellState.CORDONED, CellState.DRAINING, CellState.QUARANTINED})
    order = _CellOrder(name, actor, reason.strip(), now)
    _order(order, states, CellState.READY, "uncordoned", Action.UNCORDON_CELL)


def drain_cell(
    *,
    name: str,
    actor: str,
    reason: str = "",
    now: datetime,
    deadline_seconds: float | None = DRAIN_SECONDS,
) -> None:
    """Give the cell no new work, and evict its tasks at the deadline without charge to retries.

    `deadline_seconds`: None for no eviction; replaces the deadline of a DRAINING cell. Raise
    NotFound, Conflict.
    """
    states = frozenset(set(CellState) - {CellState.LOST})
    until = None if deadline_seconds is None else now + timedelta(seconds=deadline_seconds)
    order = _CellOrder(name, actor, reason.strip(), now)
    _order(order, states, CellState.DRAINING, "drained", Action.DRAIN_CELL, until)


def unquarantine_cell(*, name: str, actor: str, reason: str = "", now: datetime) -> None:
    """Return the cell to its ordered state and ignore its past failures. Raise NotFound.

    A cell that is not QUARANTINED keeps its state.
    """
    cell, order = _find(name), _CellOrder(name, actor, reason.strip(), now)
    ordered, why = CellState(cell.ordered_state), order.describe("taken out of quarantine")
    states = frozenset({CellState.QUARANTINED})
    change = ChangeCell(cell.pk, states, ordered, why, actor=actor, trusted_at=now)
    effects = Effects(cells=[change], cleared=clear_suspicions(name), frees=True)
    with transaction.atomic():
        if apply(effects, now=now).moved:
            before, after = changed_fields({"state": cell.state}, {"state": str(ordered)})
            entry = AuditEntry(
                Action.UNQUARANTINE_CELL, f"cell {name}", order.reason, before=before, after=after
            )
            record(entry, actor=actor, now=now)


@dataclass(frozen=True, slots=True)
class _CellOrder:
    """An order of the operator `actor` about the cell `name`."""

    name: str
    actor: str
    reason: str
    now: datetime

    def describe(self, verb: str) -> str:
        """Return the reason of the new state: `drained by olga: new kernel`."""
        return f"{verb} by {self.actor}" + (f": {self.reason}" if self.reason else "")


def _order(
    order: _CellOrder,
    states: frozenset[CellState],
    state: CellState,
    verb: str,
    action: Action,
    drain_deadline_at: datetime | None = None,
) -> None:
    cell, now = _find(order.name), order.now
    if cell.state == state and state is not CellState.DRAINING and cell.ordered_state == state:
        return
    change = ChangeCell(
        cell.pk,
        states | {state},
        state,
        order.describe(verb),
        ordered=state,
        actor=order.actor,
        drain_deadline_at=drain_deadline_at,
        trusted_at=now if state is CellState.READY else None,
        # Convergence raises them again if their cause persists.
        cleared=clear_suspicions(order.name),
    )
    # A LOST cell gets the ordered state when it registers again.
    lost = CellState.LOST
    waits = replace(
        change,
        states=frozenset({lost}),
        state=lost,
        reason=cell.state_reason,
        order_reason=change.reason,
        trusted_at=None,
    )
    with transaction.atomic():
        if not apply(Effects(cells=[change, waits]), now=now).moved:
            raise Conflict(f"cell {order.name} is {cell.state} and cannot become {state}")
        before, after = changed_fields(
            {"ordered_state": cell.ordered_state, "drain_deadline_at": _deadline_of(cell)},
            {
                "ordered_state": str(state),
                "drain_deadline_at": drain_deadline_at and drain_deadline_at.isoformat(),
            },
        )
        entry = AuditEntry(action, f"cell {order.name}", order.reason, before=before, after=after)
        record(entry, actor=order.actor, now=now)


def _deadline_of(cell: Cell) -> str | None:
    return None if cell.drain_deadline_at is None else cell.drain_deadline_at.isoformat()


def _find(name: str) -> Cell:
    cell = Cell.objects.filter(name=name).first()
    if cell is None:
        raise NotFound(f"there is no cell {name!r}")
    return cell
