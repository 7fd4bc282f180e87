"""Load credentials, tokens without their values, and users."""

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.db.models import QuerySet

from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Role
from controlplane.models import ApiToken


@dataclass(frozen=True, slots=True)
class Credential:
    """What a caller presents: a valid token, or a session of the admin (`token_id` is None).

    `role`: the lesser of the token's and the user's. `bound_to`: the ids of the projects that the
    token is limited to; None: all.
    """

    user: User
    role: Role
    token_id: int | None = None
    token_name: str = ""
    last_used_at: datetime | None = None
    bound_to: tuple[int, ...] | None = None


def find_credential(digest: str, *, now: datetime) -> Credential | None:
    """Return the credential of the digest; None if unknown, expired or of an inactive user."""
    token = ApiToken.objects.select_related("user").filter(digest=digest).first()
    if token is None or not token.user.is_active:
        return None
    if token.expires_at is not None and token.expires_at <= now:
        return None
    role = Role(token.role).capped(find_role(token.user))
    bound_to = None
    if token.bound_to is not None:
        role, bound_to = role.capped(Role.MANAGER), tuple(token.bound_to)
    return Credential(token.user, role, token.pk, token.name, token.last_used_at, bound_to)


def session_credential(user: User) -> Credential:
    """Return the credential of a user who is logged in to the admin."""
    return Credential(user, find_role(user))


def find_role(user: User) -> Role:
    """Return the role of a user, which limits the roles of the user's tokens."""
    return Role.OPERATOR if user.is_superuser else Role.MANAGER


def find_user(name: str) -> User:
    """Return an active user. Raise NotFound."""
    user = get_user_model().objects.filter(username=name, is_active=True).first()
    if user is None:
        raise NotFound(f"there is no user {name}")
    return user


def get_user(name: str) -> User:
    """Return a user, active or not. Raise NotFound."""
    user = get_user_model().objects.filter(username=name).first()
    if user is None:
        raise NotFound(f"there is no user {name}")
    return user


def get_group(name: str) -> Group:
    """Return a group of users. Raise NotFound."""
    group = Group.objects.filter(name=name).first()
    if group is None:
        raise NotFound(f"there is no group {name}")
    return group


def list_tokens(user_id: int | None, *, before: int | None, limit: int) -> list[ApiToken]:
    """Return tokens, newest first; all users' if `user_id` is None."""
    found = _described()
    if user_id is not None:
        found = found.filter(user_id=user_id)
    if before is not None:
        found = found.filter(pk__lt=before)
    return list(found.order_by("-pk")[:limit])


def get_token(token_id: int) -> ApiToken:
    """Return one token without its digest. Raise NotFound."""
    token = _described().filter(pk=token_id).first()
    if token is None:
        raise NotFound(f"there is no token {token_id}")
    return token


def list_users(*, after: str | None, limit: int) -> list[User]:
    """Return users by name."""
    found = get_user_model().objects.filter(username__gt=after or "").order_by("username")
    return list(found[:limit])


def _described() -> QuerySet[ApiToken]:
    return ApiToken.objects.defer("digest").select_related("user")
