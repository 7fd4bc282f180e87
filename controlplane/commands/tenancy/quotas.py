"""Set quotas. A change takes effect from the next pass on and ends no running task."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model

from controlplane.commands.audit import Action, AuditEntry, changed_fields, fields_of, record
from controlplane.commands.tenancy.pools import faults_of
from controlplane.domain.errors import NotFound
from controlplane.domain.scopes import Scope, ScopeKind, ScopeLimits
from controlplane.models import Domain, Project, Quota
from controlplane.outbox.wakes import wake_placement
from controlplane.queries.views.quotas import scope_of
from controlplane.spec import InvalidSpec


def put_quota(*, scope: Scope, changes: Mapping[str, Any]) -> None:
    """Set limits of a scope; delete its quota when no limit remains.

    Raise InvalidSpec with the wrong fields, or NotFound; then nothing was changed.
    """
    try:
        with transaction.atomic():
            _lock(scope)
            key: dict[str, Any] = {f"{scope.kind}_id": scope.key}
            quota, is_new = Quota.objects.get_or_create(**key)
            for field, value in changes.items():
                setattr(quota, field, value)
            quota.full_clean()
            if not _limits_nothing(quota):
                save_quota(quota, is_new=is_new)
            elif is_new:
                quota.delete()
            else:
                drop_quotas([quota.pk])
    except ValidationError as error:
        raise InvalidSpec(faults_of(error)) from None


def save_quota(quota: Quota, *, is_new: bool = False) -> None:
    """Write a validated quota, and wake placement. `is_new`: its row was created for this call."""
    with transaction.atomic():
        present = Quota.objects.select_for_update().filter(pk=quota.pk).first()
        quota.save()
        old = None if is_new or present is None else fields_of(present)
        before, after = changed_fields(old or {}, fields_of(quota))
        if old is None:
            record(_entry(Action.CREATE_QUOTA, quota, after=after))
        elif after:
            record(_entry(Action.CHANGE_QUOTA, quota, before=before, after=after))
    transaction.on_commit(wake_placement, robust=True)


def drop_quotas(ids: Sequence[int]) -> None:
    """Delete quotas by id, and wake placement."""
    with transaction.atomic():
        named = Quota.objects.select_for_update(of=("self",)).select_related(
            "user", "project__domain", "domain"
        )
        found = list(named.filter(pk__in=ids))
        entries = [_entry(Action.DELETE_QUOTA, it, before=fields_of(it)) for it in found]
        Quota.objects.filter(pk__in=ids).delete()
        record(*entries)
    transaction.on_commit(wake_placement, robust=True)


def _entry(
    action: Action,
    quota: Quota,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditEntry:
    named = scope_of(quota)
    return AuditEntry(
        action,
        f"quota of {named.scope.kind} {named.name}",
        project_id=quota.project_id,
        domain_id=quota.domain_id,
        before=before,
        after=after,
    )


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
