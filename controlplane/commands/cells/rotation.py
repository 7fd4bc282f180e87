"""Rotate the key of a running cell: its next key is valid beside the present one for a time.

The first message under the next key ends the present one. A next key without use is discarded.
"""

import secrets
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Q, QuerySet

from controlplane.commands.audit import Action, AuditEntry, Via, record
from controlplane.commands.cells.redis_users import put_users_of
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.wire.keys import encode_key
from controlplane.domain.cells.keys import SALT_BYTES, CellAddress
from controlplane.domain.errors import Conflict, NotFound
from controlplane.models import Cell
from controlplane.outbox.redis_users import RedisUsersFailed
from controlplane.queries.cells.keys import keys_of, present_key_id

_IN_ROTATION = ~Q(next_key_salt="")

_POSTPONED = timedelta(days=1)
"""The least time until the deadline of a next key that its cell uses."""


def rotate_key(*, name: str, until: datetime, actor: str, now: datetime) -> tuple[str, datetime]:
    """Draw the next key of a cell; return it as text, and when it is discarded without a use.

    During a rotation return the same key, with the time of that rotation. Raise NotFound; Conflict
    if its key is revoked; RedisUsersFailed if the next key has no login at Redis.
    """
    found = run_in_transaction(partial(_rotate, name, until, actor, now))
    put_users_of(name)
    return found


def _rotate(name: str, until: datetime, actor: str, now: datetime) -> tuple[str, datetime]:
    cell = _locked().filter(name=name).first()
    if cell is None:
        raise NotFound(f"there is no cell {name!r}")
    if cell.revoked_at is not None:
        raise Conflict(f"the key of cell {name} was revoked: enroll the cell with --renew")
    action = Action.SHOW_CELL_KEY
    if cell.next_key_until is None:
        action = Action.ROTATE_CELL_KEY
        cell.next_key_salt, cell.next_secret_key_id = (
            secrets.token_hex(SALT_BYTES),
            present_key_id(),
        )
        cell.next_key_until = until
        cell.save(update_fields=["next_key_salt", "next_secret_key_id", "next_key_until"])
    text = f"the next key, until {cell.next_key_until:%Y-%m-%d %H:%M:%S} UTC"
    record(AuditEntry(action, f"cell {name}", text), actor=actor, now=now)
    return encode_key(keys_of(cell)[-1]), cell.next_key_until


def complete_rotation(address: CellAddress, *, now: datetime) -> None:
    """End the present key of a cell that has sent a message under its next one.

    Both stay valid if Redis does not end the logins of the present one: raise RedisUsersFailed.
    """
    try:
        run_in_transaction(partial(_complete, address, now))
    except RedisUsersFailed:
        # The cell has only its next key now: at the deadline it would be excluded.
        until = now + _POSTPONED
        used = Cell.objects.filter(_IN_ROTATION, pk=address.cell_id, next_key_until__lt=until)
        used.update(next_key_until=until)
        raise


def _complete(address: CellAddress, now: datetime) -> None:
    cell = _locked().filter(_IN_ROTATION, pk=address.cell_id).first()
    if cell is None or keys_of(cell)[-1] != address.key:
        return
    cell.key_salt, cell.secret_key_id = cell.next_key_salt, cell.next_secret_key_id
    discard_next_key(cell, "key_salt", "secret_key_id")
    text = "the cell uses its next key; the one before is invalid"
    entry = AuditEntry(Action.REPLACE_CELL_KEY, f"cell {cell.name}", text)
    record(entry, actor=cell.name, via=Via.CELL, now=now)
    put_users_of(cell.name, disconnect=True)


def end_overdue_rotations(*, now: datetime) -> int:
    """Discard next keys that no cell has used in time; return their number.

    Raise RedisUsersFailed; then the key stays valid, and the next run discards it.
    """
    overdue = Cell.objects.filter(_IN_ROTATION, next_key_until__lte=now).order_by("pk")
    pks = list(overdue.values_list("pk", flat=True))
    return sum(run_in_transaction(partial(_discard_overdue, pk, now)) for pk in pks)


def _discard_overdue(pk: int, now: datetime) -> int:
    cell = _locked().filter(_IN_ROTATION, pk=pk, next_key_until__lte=now).first()
    if cell is None:
        return 0
    discard_next_key(cell)
    text = "the cell did not use its next key; the present one stays valid"
    entry = AuditEntry(Action.DISCARD_CELL_KEY, f"cell {cell.name}", text)
    record(entry, actor="convergence", now=now)
    put_users_of(cell.name, disconnect=True)
    return 1


def discard_next_key(cell: Cell, *changed: str) -> None:
    """End the rotation of the (locked) cell, if there is one; the caller changes its logins.

    `changed`: other fields to save.
    """
    cell.next_key_salt, cell.next_secret_key_id, cell.next_key_until = "", "", None
    fields = ["next_key_salt", "next_secret_key_id", "next_key_until"]
    cell.save(update_fields=[*fields, *changed])


def _locked() -> QuerySet[Cell]:
    return Cell.objects.select_for_update(no_key=True, of=("self",))
