"""Users of the API and of the admin, and the default tenancy."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, changed_fields, fields_of, record
from controlplane.commands.tenancy.members import remove_all_roles
from controlplane.domain.errors import Conflict
from controlplane.domain.scopes import DEFAULT_NAME
from controlplane.models import Domain, Pool, Project


def create_default_tenancy() -> bool:
    """Create the default domain, project and pool; return whether the pool is new. Idempotent."""
    with transaction.atomic():
        domain, is_new_domain = Domain.objects.get_or_create(name=DEFAULT_NAME)
        project, is_new_project = Project.objects.get_or_create(domain=domain, name=DEFAULT_NAME)
        _, is_new_pool = Pool.objects.get_or_create(name=DEFAULT_NAME)
        made = []
        if is_new_domain:
            subject = f"domain {domain.name}"
            made.append(AuditEntry(Action.CREATE_DOMAIN, subject, domain_id=domain.pk))
        if is_new_project:
            subject = f"project {domain.name}/{project.name}"
            made.append(AuditEntry(Action.CREATE_PROJECT, subject, project_id=project.pk))
        if is_new_pool:
            made.append(AuditEntry(Action.CREATE_POOL, f"pool {DEFAULT_NAME}"))
        record(*made)
    return is_new_pool


def create_user(*, name: str, password: str | None, is_operator: bool) -> tuple[User, bool]:
    """Create or update the user `name`; return it, and whether it is new.

    An operator has all permissions in the admin. A given password replaces the current one. A new
    user without a password cannot log in by password. Raise ValidationError if a new password
    violates the rules of the settings.
    """
    with transaction.atomic():
        user, is_new = _lock_user(name)
        before = {} if is_new else describe_user(user)
        user.is_staff = user.is_superuser = is_operator
        if password is None and is_new:
            user.set_unusable_password()
        elif password is not None and not user.check_password(password):
            validate_password(password, user)
            user.set_password(password)
        user.save()
        record_user(user, before)
    return user, is_new


def put_user(*, name: str, is_active: bool, actor: str, now: datetime) -> bool:
    """Create the user `name` without a password, or update it.

    Return whether it is new. An inactive user's tokens and sessions are refused at once. Raise
    Conflict if the actor would deactivate its own account.
    """
    if name == actor and not is_active:
        raise Conflict("operators cannot deactivate their own account")
    with transaction.atomic():
        user, is_new = _lock_user(name)
        if is_new:
            user.set_unusable_password()
        if is_new or user.is_active is not is_active:
            before = {} if is_new else describe_user(user)
            user.is_active = is_active
            user.save()
            record_user(user, before, actor=actor, now=now)
    return is_new


def delete_users(ids: Sequence[int]) -> None:
    """Delete users by id, with their tokens and roles."""
    with transaction.atomic():
        users = list(get_user_model().objects.select_for_update().filter(pk__in=ids))
        for user in users:
            before = describe_user(user)
            before.pop(_PASSWORD)
            remove_all_roles(user)
            record(AuditEntry(Action.DELETE_USER, f"user {user.get_username()}", before=before))
            user.delete()


def describe_user(user: User) -> dict[str, Any]:
    """Return what the audit log compares: fields, permissions, and whether the password is new."""
    found = fields_of(user, without=_NOT_AUDITED)
    if user.pk is not None:
        found["groups"] = sorted(user.groups.values_list("name", flat=True))
        permissions = user.user_permissions.values_list("content_type__app_label", "codename")
        found["user_permissions"] = sorted(".".join(names) for names in permissions)
    return {**found, _PASSWORD: user.password}


def record_user(
    user: User,
    before: Mapping[str, Any],
    *,
    actor: str | None = None,
    now: datetime | None = None,
) -> None:
    """Write an audit line if the user differs from `before` (of a new one: empty)."""
    old, new = changed_fields(before, describe_user(user))
    if old or new:
        has_new_password = before and new.pop(_PASSWORD, None) is not None
        for values in (old, new):
            values.pop(_PASSWORD, None)
        action = Action.CHANGE_USER if before else Action.CREATE_USER
        text = "new password" if has_new_password else ""
        subject = f"user {user.get_username()}"
        record(
            AuditEntry(action, subject, text, before=old or None, after=new or None),
            actor=actor,
            now=now,
        )


_PASSWORD = "password"
_NOT_AUDITED = frozenset({_PASSWORD, "last_login", "date_joined"})


def _lock_user(name: str) -> tuple[User, bool]:
    return get_user_model().objects.select_for_update().get_or_create(username=name)
