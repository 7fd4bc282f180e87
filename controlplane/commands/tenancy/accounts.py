"""Users of the API and their tokens, of which only digests are stored."""

import hashlib
import secrets
from datetime import datetime

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import transaction

from controlplane.models import ApiToken, Domain, Pool, Project

SCOPE_SUBMIT = "submit"
SCOPE_OPERATE = "operate"
SCOPES = (SCOPE_SUBMIT, SCOPE_OPERATE)

DEFAULT_NAME = "default"
"""Domain, project and pool of a job that names none."""

TOKEN_MARK = "cr_"
"""The first characters of every token, so that scanners for leaked secrets recognize it."""

PREFIX_LENGTH = 8
"""Characters of a token stored in clear to distinguish tokens: 5 of the 43 random ones."""


def create_default_tenancy() -> None:
    """Create the default domain, project and pool. Idempotent."""
    with transaction.atomic():
        domain, _ = Domain.objects.get_or_create(name=DEFAULT_NAME)
        Project.objects.get_or_create(domain=domain, name=DEFAULT_NAME)
        Pool.objects.get_or_create(name=DEFAULT_NAME)


def create_user(*, name: str, password: str | None, is_operator: bool) -> tuple[User, bool]:
    """Create or update the user `name`; return it, and whether it is new.

    An operator has all permissions in the admin. A given password replaces the current one. A new
    user without a password cannot log in by password.
    """
    model = get_user_model()
    with transaction.atomic():
        user, is_new = model.objects.select_for_update().get_or_create(username=name)
        user.is_staff = user.is_superuser = is_operator
        if password is None and is_new:
            user.set_unusable_password()
        elif password is not None and not user.check_password(password):
            user.set_password(password)
        user.save()
    return user, is_new


def create_api_token(
    *,
    user: User,
    name: str,
    scopes: tuple[str, ...],
    now: datetime,
    token: str | None = None,
    expires_at: datetime | None = None,
) -> str:
    """Create a token for `user` and return it in clear, which is not possible later.

    A given `token` (at least 32 characters) replaces the user's token of that name, so that a
    restarted stack keeps its tokens.
    """
    unknown = set(scopes) - set(SCOPES)
    if unknown:
        raise ValueError(f"unknown scopes {sorted(unknown)}; expected some of {SCOPES}")
    if token is not None and len(token) < 32:
        raise ValueError("a token has at least 32 characters")
    clear = token or TOKEN_MARK + secrets.token_urlsafe(32)
    with transaction.atomic():
        if token is not None:
            ApiToken.objects.filter(user=user, name=name).delete()
        ApiToken.objects.create(
            user=user,
            name=name,
            prefix=clear[:PREFIX_LENGTH],
            digest=digest_of(clear),
            scopes=list(scopes),
            created_at=now,
            expires_at=expires_at,
        )
    return clear


def digest_of(token: str) -> str:
    """Return the stored digest. Tokens are long and random, so plain SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()
