"""Making and changing pools: what is written is in force from the next pass on."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.models import Pool
from controlplane.outbox.wakes import wake_placement
from controlplane.spec import Fault, InvalidSpec

# Written by placement alone, which may be at it at the same time.
_PLACEMENTS_OWN = frozenset({"cursor"})


def put_pool(*, name: str, changes: Mapping[str, Any]) -> bool:
    """Set the fields of a pool, which is made if there is none; whether it is new.

    Raises InvalidSpec with the fields that are wrong; nothing is changed then.
    """
    try:
        with transaction.atomic():
            pool, is_new = Pool.objects.select_for_update().get_or_create(name=name)
            for field, value in changes.items():
                setattr(pool, field, value)
            pool.full_clean()
            save_pool(pool)
    except ValidationError as error:
        raise InvalidSpec(faults_of(error)) from None
    return is_new


def save_pool(pool: Pool) -> None:
    """Write a pool that was found to be right, and have placement look at once."""
    fields = None
    if pool.pk is not None:
        own = {*_PLACEMENTS_OWN, "id"}
        fields = [field.name for field in pool._meta.concrete_fields if field.name not in own]
    pool.save(update_fields=fields)
    transaction.on_commit(wake_placement, robust=True)


def faults_of(error: ValidationError) -> list[Fault]:
    """What a model found wrong with itself, field by field."""
    return [
        Fault("" if field == "__all__" else field, text)
        for field, texts in error.message_dict.items()
        for text in texts
    ]
