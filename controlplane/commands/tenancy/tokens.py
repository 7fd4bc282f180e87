"""Tokens of the API: create, revoke and note their use. Only digests are stored."""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.domain.errors import Conflict, NotFound, NotPermitted
from controlplane.domain.roles import Role, check_grant, may_revoke
from controlplane.models import ApiToken
from controlplane.queries.tenancy.access import load_access
from controlplane.queries.tenancy.accounts import Credential, find_home, find_role, name_projects

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
    bound_to: Collection[int] | None = None,
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
                bound_to=None if bound_to is None else sorted(bound_to),
            )
            record(_describe(Action.CREATE_TOKEN, made), now=now)
    except IntegrityError:
        raise Conflict(f"{user.get_username()} has a token with the name {name} already") from None
    return clear


@dataclass(frozen=True, slots=True)
class TokenRights:
    """What a new token permits, and for how many days.

    `bound_to`: ids of projects; None: all, or of a service account its own project.
    """

    role: Role
    days: int
    bound_to: frozenset[int] | None = None


def check_rights(
    rights: TokenRights, *, by: Credential, user: User
) -> tuple[timedelta, frozenset[int] | None]:
    """Return the life of a token that the caller `by` creates for `user`, and its projects.

    Raise NotPermitted; NotFound for an inactive user, or a project that the caller may not read.
    """
    if not user.is_active:
        raise NotFound(f"there is no user {user.get_username()}")
    access, home, bound_to = load_access(by), find_home(user), rights.bound_to
    if home is not None:
        bound_to = bound_to or frozenset((home,))
        if bound_to != {home}:
            raise NotPermitted("the tokens of a service account are limited to its project")
    life = check_grant(
        giver=by.role,
        receiver=find_role(user),
        role=rights.role,
        days=rights.days,
        is_own=user.pk == by.user.pk,
        is_bound=bound_to is not None,
        giver_is_bound=by.bound_to is not None,
        manages_receiver=home is not None and (access.managed is None or home in access.managed),
    )
    readable = access.readable
    if readable is not None and not (bound_to or frozenset()) <= frozenset(readable):
        raise NotFound("there is no such project")
    return life, bound_to


def grant_token(
    *, by: Credential, user: User, name: str, rights: TokenRights, now: datetime
) -> tuple[int, str]:
    """Create a token for the caller `by`; return its id, and the token in clear.

    Raise NotPermitted, NotFound, Conflict.
    """
    life, bound_to = check_rights(rights, by=by, user=user)
    with transaction.atomic():
        _lock_parties(by, user)
        clear = create_api_token(
            user=user,
            name=name,
            role=rights.role,
            now=now,
            expires_at=now + life,
            bound_to=bound_to,
        )
        made = ApiToken.objects.get(user=user, name=name)
    return made.pk, clear


def _lock_parties(by: Credential, user: User) -> None:
    """Keep the receiver active and the token of the caller valid. Raise NotFound, NotPermitted.

    A revocation or deactivation that was committed since the request began counts; a later one
    waits, and finds the new token.
    """
    users = User.objects.select_for_update(no_key=True, of=("self",)).filter(is_active=True)
    if not users.filter(pk=user.pk).exists():
        raise NotFound(f"there is no user {user.get_username()}")
    tokens = ApiToken.objects.select_for_update(no_key=True, of=("self",))
    if by.token is not None and not tokens.filter(pk=by.token.pk).exists():
        raise NotPermitted("the token of the request has been revoked")


def revoke_token(*, token_id: int, by: Credential, now: datetime) -> None:
    """Delete a token that the caller may revoke. Raise NotFound.

    Each request looks up its token, so no process accepts it afterwards.
    """
    with transaction.atomic():
        found = ApiToken.objects.select_for_update(of=("self",)).select_related("user")
        token = found.filter(pk=token_id).first()
        if token is None or not may_revoke(
            load_access(by), owner_id=token.user_id, bound_to=token.bound_to
        ):
            raise NotFound(f"there is no token {token_id}")
        record(_describe(Action.REVOKE_TOKEN, token), actor=by.user.get_username(), now=now)
        token.delete()


def note_use(credential: Credential, *, now: datetime) -> None:
    """Store the time of the last use, at most once an hour."""
    token, before = credential.token, now - timedelta(seconds=USE_SECONDS)
    if token is not None and (token.last_used_at is None or token.last_used_at <= before):
        found = ApiToken.objects.filter(pk=token.pk)
        found.exclude(last_used_at__gt=before).update(last_used_at=now)
        token.last_used_at = now


def digest_of(token: str) -> str:
    """Return the stored digest. Tokens are long and random, so plain SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def _describe(action: Action, token: ApiToken) -> AuditEntry:
    name_projects([token], readable=None)
    facts = {
        "prefix": token.prefix,
        "role": token.role,
        "expires_at": None if token.expires_at is None else token.expires_at.isoformat(),
        "projects": token.projects,
    }
    subject = f"token {token.name} of {token.user.get_username()}"
    if action is Action.CREATE_TOKEN:
        return AuditEntry(action, subject, after=facts)
    return AuditEntry(action, subject, before=facts)
