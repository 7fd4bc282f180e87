"""Load credentials, tokens without their values, and users."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet

from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Role
from controlplane.models import ApiToken, Project, RecoveryCode, ServiceAccount, TotpDevice
from controlplane.queries.sql import rows


@dataclass(frozen=True, slots=True)
class Credential:
    """What a caller presents: a valid token, or a session of the admin (`token` is None).

    `role`: the lesser of the token's and the user's. `bound_to`: the ids of the projects that the
    token is limited to; None: all.
    """

    user: User
    role: Role
    token: ApiToken | None = None
    bound_to: tuple[int, ...] | None = None

    @property
    def token_id(self) -> int | None:
        """Return the id of the token; None for a session."""
        return None if self.token is None else self.token.pk

    @property
    def token_name(self) -> str:
        """Return the name of the token; empty for a session."""
        return "" if self.token is None else self.token.name


def find_credential(digest: str, *, now: datetime) -> Credential | None:
    """Return the credential of the digest; None if unknown, expired or of an inactive user."""
    return _load_credential("t.digest = %s", digest, now)


def find_token_credential(token_id: int, *, now: datetime) -> Credential | None:
    """Return the credential of a token by its id, as `find_credential` does."""
    return _load_credential("t.id = %s", token_id, now)


# In the order of the models, as `from_db` takes their values.
_USER_FIELDS = ("id", "is_superuser", "username", "is_staff", "is_active")
_TOKEN_FIELDS = (
    *("id", "user_id", "name", "prefix", "role", "bound_to"),
    *("created_at", "expires_at", "last_used_at"),
)
_COLUMNS = ", ".join(
    [*(f"u.{name}" for name in _USER_FIELDS), *(f"t.{name}" for name in _TOKEN_FIELDS)]
)


def _load_credential(condition: str, key: object, now: datetime) -> Credential | None:
    """Return the credential of the token, by SQL: each request loads one.

    The QuerySet takes 1 ms of a submission's 14. Django loads the other fields at their use.
    """
    found = rows(
        f"SELECT {_COLUMNS} FROM controlplane_apitoken t JOIN auth_user u ON u.id = t.user_id"
        f" WHERE {condition}",
        [key],
        prepare=True,
    )
    if not found:
        return None
    user = User.from_db(DEFAULT_DB_ALIAS, _USER_FIELDS, found[0][: len(_USER_FIELDS)])
    token = ApiToken.from_db(DEFAULT_DB_ALIAS, _TOKEN_FIELDS, found[0][len(_USER_FIELDS) :])
    token.user = user
    if not user.is_active:
        return None
    if token.expires_at is not None and token.expires_at <= now:
        return None
    role = Role(token.role).capped(find_role(user))
    bound_to = None
    if token.bound_to is not None:
        role, bound_to = role.capped(Role.MANAGER), tuple(token.bound_to)
    return Credential(user, role, token, bound_to)


def session_credential(user: User) -> Credential:
    """Return the credential of a user with a session."""
    return Credential(user, find_role(user))


def find_role(user: User) -> Role:
    """Return the role of a user, which limits the roles of the user's tokens."""
    return Role.OPERATOR if user.is_superuser else Role.MANAGER


def has_totp(user_id: int) -> bool:
    """Return whether the user has a second factor."""
    return TotpDevice.objects.filter(user_id=user_id).exists()


def find_totp_users(user_ids: Iterable[int]) -> set[int]:
    """Return the ids of those users that have a second factor."""
    found = TotpDevice.objects.filter(user_id__in=list(user_ids))
    return set(found.values_list("user_id", flat=True))


def count_recovery_codes(user_id: int) -> int:
    """Return how many recovery codes the user has left."""
    return RecoveryCode.objects.filter(device__user_id=user_id).count()


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


def find_home(user: User) -> int | None:
    """Return the id of the project of a service account; None for another user."""
    found = ServiceAccount.objects.filter(user=user).values_list("project_id", flat=True)
    return found.first()


def get_group(name: str) -> Group:
    """Return a group of users. Raise NotFound."""
    group = Group.objects.filter(name=name).first()
    if group is None:
        raise NotFound(f"there is no group {name}")
    return group


@dataclass(frozen=True, slots=True)
class TokenFilter:
    """Filters of listed tokens; None does not filter.

    `project_id`: a project that they are limited to. `within`: projects that they are limited to
    some of.
    """

    user_id: int | None = None
    project_id: int | None = None
    within: Collection[int] | None = None


def list_tokens(
    wanted: TokenFilter, *, readable: Collection[int] | None, before: int | None, limit: int
) -> list[ApiToken]:
    """Return tokens, newest first, with their projects as `name_projects` names them."""
    found = _described()
    if wanted.user_id is not None:
        found = found.filter(user_id=wanted.user_id)
    if wanted.project_id is not None:
        found = found.filter(bound_to__contains=[wanted.project_id])
    if wanted.within is not None:
        found = found.filter(bound_to__contained_by=sorted(wanted.within))
    if before is not None:
        found = found.filter(pk__lt=before)
    return name_projects(list(found.order_by("-pk")[:limit]), readable=readable)


def name_projects(tokens: list[ApiToken], *, readable: Collection[int] | None) -> list[ApiToken]:
    """Add the names of their projects to tokens, by one statement if some are limited to any.

    `readable`: ids of the projects that may be named, others are only counted; None: all.
    """
    wanted = {key for token in tokens for key in token.bound_to or ()}
    if readable is not None:
        wanted.intersection_update(readable)
    found = Project.objects.select_related("domain").filter(pk__in=wanted) if wanted else ()
    names = {project.pk: str(project) for project in found}
    for token in tokens:
        if token.bound_to is not None:
            token.projects = sorted(names[key] for key in token.bound_to if key in names)
            token.hidden_projects = len(token.bound_to) - len(token.projects)
    return tokens


def get_token(token_id: int, *, readable: Collection[int] | None) -> ApiToken:
    """Return one token without its digest, as `list_tokens` does. Raise NotFound."""
    token = _described().filter(pk=token_id).first()
    if token is None:
        raise NotFound(f"there is no token {token_id}")
    return name_projects([token], readable=readable)[0]


def list_users(*, after: str | None, limit: int) -> list[User]:
    """Return users by name."""
    found = get_user_model().objects.filter(username__gt=after or "").order_by("username")
    return list(found[:limit])


def _described() -> QuerySet[ApiToken]:
    return ApiToken.objects.defer("digest").select_related("user")
