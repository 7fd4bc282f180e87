"""Setting quotas: what is written counts from the next pass on; nothing that runs is ended."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.commands.pools import faults_of
from controlplane.domain.scopes import Limits, Scope
from controlplane.models import Quota
from controlplane.outbox.wakes import wake_placement
from controlplane.spec import InvalidSpec


def put_quota(*, scope: Scope, changes: Mapping[str, Any]) -> None:
    """Set some of the limits of a scope. One without limits has no quota any more.

    Raises InvalidSpec with the fields that are wrong; nothing is changed then.
    """
    try:
        with transaction.atomic():
            key: dict[str, Any] = {f"{scope.kind}_id": scope.key}
            quota, _ = Quota.objects.select_for_update().get_or_create(**key)
            for field, value in changes.items():
                setattr(quota, field, value)
            quota.full_clean()
            if _limits_nothing(quota):
                drop_quotas([quota.pk])
            else:
                save_quota(quota)
    except ValidationError as error:
        raise InvalidSpec(faults_of(error)) from None


def save_quota(quota: Quota) -> None:
    """Write a quota that was found to be right, and have placement look at once."""
    quota.save()
    transaction.on_commit(wake_placement, robust=True)


def drop_quotas(ids: Sequence[int]) -> None:
    """Limit nothing of those any more, and have placement look at once."""
    Quota.objects.filter(pk__in=ids).delete()
    transaction.on_commit(wake_placement, robust=True)


def _limits_nothing(quota: Quota) -> bool:
    limits = Limits(
        quota.resources,
        quota.running_tasks,
        quota.running_jobs,
        quota.pending_tasks,
        quota.weight,
    )
    return limits == Limits()
