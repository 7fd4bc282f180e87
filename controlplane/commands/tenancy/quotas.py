"""Set quotas. A change takes effect from the next pass on and ends no running task."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model

from controlplane.commands.tenancy.pools import faults_of
from controlplane.domain.errors import NotFound
from controlplane.domain.scopes import Scope, ScopeKind, ScopeLimits
from controlplane.models import Domain, Project, Quota
from controlplane.outbox.wakes import wake_placement
from controlplane.spec import InvalidSpec


def put_quota(*, scope: Scope, changes: Mapping[str, Any]) -> None:
    """Set limits of a scope; delete its quota when no limit remains.

    Raise InvalidSpec with the wrong fields, or NotFound; then nothing was changed.
    """
    try:
        with transaction.atomic():
            _lock(scope)
            key: dict[str, Any] = {f"{scope.kind}_id": scope.key}
            quota, _ = Quota.objects.get_or_create(**key)
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
    """Write a validated quota, and wake placement."""
    quota.save()
    transaction.on_commit(wake_placement, robust=True)


def drop_quotas(ids: Sequence[int]) -> None:
    """Delete quotas by id, and wake placement."""
    Quota.objects.filter(pk__in=ids).delete()
    transaction.on_commit(wake_placement, robust=True)


def _lock(scope: Scope) -> None:
    """Lock the owner of the quota, since the quota itself may not exist. Raise NotFound."""
    models: dict[ScopeKind, type[Model]] = {
        ScopeKind.USER: get_user_model(),
        ScopeKind.PROJECT: Project,
        ScopeKind.DOMAIN: Domain,
    }
    owners = models[scope.kind]._default_manager.select_for_update(no_key=True)
    if owners.filter(pk=scope.key).first() is None:
        raise NotFound(f"there is no such {scope.kind}")


def _limits_nothing(quota: Quota) -> bool:
    limits = ScopeLimits(
        quota.resources,
        quota.running_tasks,
        quota.running_jobs,
        quota.pending_tasks,
        quota.weight,
    )
    return limits == ScopeLimits()
