"""Set quotas. A change takes effect from the next pass on and ends no running task."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model

from controlplane.commands.audit import Action, AuditEntry, changed_fields, fields_of, record
from controlplane.commands.tenancy.pools import faults_of
from controlplane.domain.errors import NotFound
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.models import Domain, Project, Quota
from controlplane.outbox.wakes import wake_placement
from controlplane.queries.views.quotas import scope_of
from controlplane.spec import InvalidSpec

# The quotas of scopes without one of their own in a new installation: enough for every ordinary
# use, so that they stop only a mistake or an abuse before it stops all others.
SHIPPED_DEFAULTS: Mapping[ScopeKind, Mapping[str, int]] = MappingProxyType(
    {
        ScopeKind.USER: {"running_tasks": 10_000},
        ScopeKind.PROJECT: {"running_tasks": 20_000},
    }
)


def put_quota(*, scope: Scope, changes: Mapping[str, Any]) -> None:
    """Set limits of a scope; the others keep their values, also those of the default quota.

    Delete its quota if it equals the default quota afterwards. Raise InvalidSpec with the wrong
    fields, or NotFound; then nothing was changed.
    """
    key: dict[str, Any] = {f"{scope.kind}_id": scope.key}
    with transaction.atomic():
        _lock(scope)
        default = Quota.objects.filter(default_for=scope.kind).first() or Quota(**key)
        quota = Quota.objects.filter(**key).first()
        if quota is None:
            quota = Quota(**key, **{name: getattr(default, name) for name in Quota.LIMITS})
        _put(quota, changes, default)


def put_default_quota(*, kind: ScopeKind, changes: Mapping[str, Any]) -> None:
    """Set limits of all scopes of a kind without a quota of their own.

    Delete the default quota if no limit remains. Raise InvalidSpec with the wrong fields; then
    nothing was changed.
    """
    with transaction.atomic():
        quota = Quota.objects.select_for_update().filter(default_for=kind).first()
        _put(quota or Quota(default_for=kind), changes, Quota(default_for=kind))


def delete_quota(*, scope: Scope, name: str) -> None:
    """Delete the quota of the scope `name`: its default quota applies again. Raise NotFound."""
    with transaction.atomic():
        _lock(scope)
        quota = Quota.objects.filter(**{f"{scope.kind}_id": scope.key}).first()
        if quota is None:
            raise NotFound(f"{scope.kind} {name} has no quota of its own")
        drop_quotas([quota.pk])


def delete_default_quota(*, kind: ScopeKind) -> None:
    """Delete the default quota of a kind, which then has no limits. Raise NotFound."""
    with transaction.atomic():
        quota = Quota.objects.select_for_update().filter(default_for=kind).first()
        if quota is None:
            raise NotFound(f"there is no default quota of a {kind}")
        drop_quotas([quota.pk])


def create_shipped_defaults() -> None:
    """Create the default quotas of a new installation."""
    for kind, limits in SHIPPED_DEFAULTS.items():
        put_default_quota(kind=kind, changes=limits)


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


def _put(quota: Quota, changes: Mapping[str, Any], default: Quota) -> None:
    """Write `quota` with the changes, or delete it if it equals `default`. Raise InvalidSpec."""
    for field, value in changes.items():
        setattr(quota, field, value)
    try:
        quota.full_clean()
    except ValidationError as error:
        raise InvalidSpec(faults_of(error)) from None
    if quota.limits() != default.limits():
        save_quota(quota)
    elif quota.pk is not None:
        drop_quotas([quota.pk])


def _entry(
    action: Action,
    quota: Quota,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditEntry:
    if quota.default_for:
        subject = f"default quota of a {quota.default_for}"
    else:
        named = scope_of(quota)
        subject = f"quota of {named.scope.kind} {named.name}"
    return AuditEntry(
        action,
        subject,
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
