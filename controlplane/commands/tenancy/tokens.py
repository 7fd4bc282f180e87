"""Tokens of the API: create, revoke and note their use. Only digests are stored."""

import hashlib
import secrets
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.roles import Role, check_grant
from controlplane.models import ApiToken
from controlplane.queries.tenancy.accounts import Credential, find_role

TOKEN_MARK = "cr_"
"""The first characters of every token, so that scanners for leaked secrets recognize it."""

PREFIX_LENGTH = 8
"""Characters of a token stored in clear to distinguish tokens: 5 of the 43 random ones."""

USE_SECONDS = 3600
"""The time of the last use is exact to this."""


def create_api_token(
    *,
    user: User,
    name: str,
    role: Role,
    now: datetime,
    token: str | None = None,
    expires_at: datetime | None = None,
) -> str:
    """Create a token for `user` and return it in clear, which is not possible later.

    A given `token` (at least 32 characters) replaces the user's token of that name, so that a
    restarted stack keeps its tokens. Raise Conflict for a name that the user has already.
    """
    if token is not None and len(token) < 32:
        raise ValueError("a token has at least 32 characters")
    clear = token or TOKEN_MARK + secrets.token_urlsafe(32)
    try:
        with transaction.atomic():
            if token is not None:
                ApiToken.objects.filter(user=user, name=name).delete()
            made = ApiToken.objects.create(
                user=user,
                name=name,
                prefix=clear[:PREFIX_LENGTH],
                digest=digest_of(clear),
                role=role,
                created_at=now,
                expires_at=expires_at,
            )
            record(_describe(Action.CREATE_TOKEN, made), now=now)
    except IntegrityError:
        raise Conflict(f"{user.get_username()} has a token with the name {name} already") from None
    return clear


def grant_token(
    *, by: Credential, user: User, name: str, role: Role, days: int, now: datetime
) -> tuple[int, str]:
    """Create a token for the caller `by`; return its id, and the token in clear.

    Raise NotPermitted, Conflict.
    """
    life = check_grant(
        giver=by.role,
        receiver=find_role(user),
        role=role,
        days=days,
        is_own=user.pk == by.user.pk,
    )
    with transaction.atomic():
        clear = create_api_token(user=user, name=name, role=role, now=now, expires_at=now + life)
        made = ApiToken.objects.get(user=user, name=name)
    return made.pk, clear


def revoke_token(*, token_id: int, by: Credential, now: datetime) -> None:
    """Delete a token of the caller, or as an operator any. Raise NotFound.

    Each request looks up its token, so no process accepts it afterwards.
    """
    with transaction.atomic():
        found = ApiToken.objects.select_for_update(of=("self",)).select_related("user")
        token = found.filter(pk=token_id).first()
        is_own = token is not None and token.user_id == by.user.pk
        if token is None or not (is_own or by.role is Role.OPERATOR):
            raise NotFound(f"there is no token {token_id}")
        record(_describe(Action.REVOKE_TOKEN, token), actor=by.user.get_username(), now=now)
        token.delete()


def note_use(credential: Credential, *, now: datetime) -> None:
    """Store the time of the last use, at most once an hour."""
    token_id, before = credential.token_id, now - timedelta(seconds=USE_SECONDS)
    is_recent = credential.last_used_at is not None and credential.last_used_at > before
    if token_id is not None and not is_recent:
        token = ApiToken.objects.filter(pk=token_id)
        token.exclude(last_used_at__gt=before).update(last_used_at=now)


def digest_of(token: str) -> str:
    """Return the stored digest. Tokens are long and random, so plain SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def _describe(action: Action, token: ApiToken) -> AuditEntry:
    facts = {
        "prefix": token.prefix,
        "role": token.role,
        "expires_at": None if token.expires_at is None else token.expires_at.isoformat(),
    }
    subject = f"token {token.name} of {token.user.get_username()}"
    if action is Action.CREATE_TOKEN:
        return AuditEntry(action, subject, after=facts)
    return AuditEntry(action, subject, before=facts)
