"""Create and change pools. A change takes effect from the next pass on."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, changed_fields, fields_of, record
from controlplane.commands.state.apply import apply
from controlplane.domain.convergence.lost_cells import MASS_LOSS
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.state.effects import ClearAlert, Effects
from controlplane.models import Pool
from controlplane.outbox.wakes import wake_placement
from controlplane.queries.convergence.lost_cells import list_silent_cells
from controlplane.spec import Fault, InvalidSpec

# Fields that only the ticks write, perhaps at the same time.
_TICKS_OWN = frozenset({"cursor", "uncovered_since", "loss_held_at", "loss_confirmed_at"})


def put_pool(*, name: str, changes: Mapping[str, Any]) -> bool:
    """Create or change a pool; return whether it is new.

    Raise InvalidSpec with the wrong fields; then nothing was changed.
    """
    try:
        with transaction.atomic():
            pool, is_new = Pool.objects.select_for_update().get_or_create(name=name)
            for field, value in changes.items():
                setattr(pool, field, value)
            pool.full_clean()
            save_pool(pool, is_new=is_new)
    except ValidationError as error:
        raise InvalidSpec(faults_of(error)) from None
    return is_new


def save_pool(pool: Pool, *, is_new: bool = False) -> None:
    """Write a validated pool, and wake placement. `is_new`: its row was created for this call."""
    fields = None
    if pool.pk is not None:
        own = {*_TICKS_OWN, "id"}
        fields = [field.name for field in pool._meta.concrete_fields if field.name not in own]
    with transaction.atomic():
        present = Pool.objects.select_for_update(no_key=True).filter(pk=pool.pk).first()
        pool.save(update_fields=fields)
        old = None if is_new or present is None else fields_of(present, without=_TICKS_OWN)
        before, after = changed_fields(old or {}, fields_of(pool, without=_TICKS_OWN))
        if old is None:
            record(AuditEntry(Action.CREATE_POOL, f"pool {pool.name}", after=after))
        elif after:
            subject = f"pool {pool.name}"
            record(AuditEntry(Action.CHANGE_POOL, subject, before=before, after=after))
    transaction.on_commit(wake_placement, robust=True)


def confirm_loss(*, name: str, actor: str, now: datetime) -> None:
    """Confirm the loss of the pool's silent cells.

    Cells that send messages from now on are excluded. Raise NotFound; Conflict if no loss is
    suppressed.
    """
    with transaction.atomic():
        pool = Pool.objects.select_for_update(no_key=True).filter(name=name).first()
        if pool is None:
            raise NotFound(f"there is no pool {name}")
        if pool.loss_held_at is None:
            raise Conflict(f"no mass loss is suppressed in pool {name}")
        silent = list_silent_cells(pool.pk)
        text = f"suppressed since {pool.loss_held_at:%Y-%m-%d %H:%M:%S} UTC: {', '.join(silent)}"
        record(AuditEntry(Action.CONFIRM_LOSS, f"pool {name}", text), actor=actor, now=now)
        pool.loss_held_at, pool.loss_confirmed_at = None, now
        pool.save(update_fields=["loss_held_at", "loss_confirmed_at"])
        apply(Effects(cleared=[ClearAlert(MASS_LOSS, name)]), now=now)


def faults_of(error: ValidationError) -> list[Fault]:
    """Return the faults of a model's validation, field by field."""
    return [
        Fault("" if field == "__all__" else field, text)
        for field, texts in error.message_dict.items()
        for text in texts
    ]
