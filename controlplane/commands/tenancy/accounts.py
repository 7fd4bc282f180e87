"""Users of the API and of the admin, and the default tenancy."""

from datetime import datetime

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.db import transaction

from controlplane.domain.errors import Conflict
from controlplane.models import AuditLine, Domain, Pool, Project

DEFAULT_NAME = "default"
"""Domain, project and pool of a job that names none."""


def create_default_tenancy() -> bool:
    """Create the default domain, project and pool; return whether the pool is new. Idempotent."""
    with transaction.atomic():
        domain, _ = Domain.objects.get_or_create(name=DEFAULT_NAME)
        Project.objects.get_or_create(domain=domain, name=DEFAULT_NAME)
        _, is_new = Pool.objects.get_or_create(name=DEFAULT_NAME)
    return is_new


def create_user(*, name: str, password: str | None, is_operator: bool) -> tuple[User, bool]:
    """Create or update the user `name`; return it, and whether it is new.

    An operator has all permissions in the admin. A given password replaces the current one. A new
    user without a password cannot log in by password. Raise ValidationError if a new password
    violates the rules of the settings.
    """
    with transaction.atomic():
        user, is_new = _lock_user(name)
        user.is_staff = user.is_superuser = is_operator
        if password is None and is_new:
            user.set_unusable_password()
        elif password is not None and not user.check_password(password):
            validate_password(password, user)
            user.set_password(password)
        user.save()
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
            user.is_active = is_active
            user.save()
            AuditLine.objects.create(
                at=now,
                actor=actor[:150],
                action="created" if is_new else "activated" if is_active else "deactivated",
                subject=f"user {name}"[:400],
            )
    return is_new


def _lock_user(name: str) -> tuple[User, bool]:
    return get_user_model().objects.select_for_update().get_or_create(username=name)
