"""Roles on projects and of API tokens: the one place that decides what a caller may do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, StrEnum, auto

from controlplane.domain.errors import NotPermitted

DEFAULT_DAYS = 90
MAX_DAYS = 365
# An operator may grant more than MAX_DAYS, up to this.
MAX_OPERATOR_DAYS = 3650

MAX_TOKEN_NAME = 100
TOKEN_NAME = r"^[^\x00-\x1f\x7f]*$"
"""The name of a token, which lists and audit lines show: no control characters."""

MAX_TOKEN_PROJECTS = 100
"""Projects that a token can be limited to."""


class Role(StrEnum):
    """What a caller may do on a project; each role includes the ones before it.

    OPERATOR is not a role on a project: operators have it on all projects.
    """

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    MANAGER = "manager"
    OPERATOR = "operator"

    def includes(self, other: "Role") -> bool:
        """Return whether this role permits everything that `other` permits."""
        return _RANKS[self] >= _RANKS[other]

    def capped(self, other: "Role") -> "Role":
        """Return the lesser of the two roles."""
        return self if other.includes(self) else other


_RANKS = {role: rank for rank, role in enumerate(Role)}

PROJECT_ROLES = (Role.VIEWER, Role.SUBMITTER, Role.MANAGER)
"""Roles that a member has on a project, or on all projects of a domain."""

AUDITOR = "auditor"
"""The role of a member of the installation, who may read everything and change nothing."""


class Permission(Enum):
    """A kind of request."""

    READ = auto()
    """Read work and its output."""
    SUBMIT = auto()
    """Submit jobs; read the names of secrets, which jobs use."""
    CHANGE = auto()
    """Cancel, retry, delete or resolve work: submitters their own, managers any."""
    MANAGE = auto()
    """Write secrets; change members, service accounts and tokens of a project."""
    EXEC = auto()
    """Run programs inside running tasks: submitters their own, managers any."""


@dataclass(frozen=True, slots=True)
class Place:
    """The project and the domain of an object; of work, also its owner."""

    project_id: int
    domain_id: int
    owner_id: int | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """The roles of one caller.

    `limit`: the role of the presented token, which limits all others. `projects`: roles by project
    id, with those that follow from `domains`. `bound_to`: the projects of the token; None: all.
    """

    user_id: int
    limit: Role
    is_operator: bool = False
    is_auditor: bool = False
    has_open_reading: bool = False
    projects: Mapping[int, Role] = field(default_factory=dict)
    domains: Mapping[int, Role] = field(default_factory=dict)
    bound_to: frozenset[int] | None = None

    @property
    def may_operate(self) -> bool:
        """Return whether the caller may change cells, pools, quotas and everything else."""
        return self.is_operator and self.limit is Role.OPERATOR and self.bound_to is None

    @property
    def may_audit(self) -> bool:
        """Return whether the caller may read everything, also what belongs to no project."""
        return (self.is_operator or self.is_auditor) and self.bound_to is None

    @property
    def on_installation(self) -> str | None:
        """Return the role on the installation; None: the caller has none."""
        if self.bound_to is not None:
            return None
        if self.is_operator:
            return Role.OPERATOR.value
        return AUDITOR if self.is_auditor else None

    @property
    def readable(self) -> Collection[int] | None:
        """Return the ids of the projects whose work the caller may read; None: all projects."""
        if self.is_operator or self.is_auditor or self.has_open_reading:
            return self.bound_to
        if self.bound_to is None:
            return self.projects.keys()
        return self.projects.keys() & self.bound_to

    @property
    def readable_domains(self) -> Collection[int] | None:
        """Return the ids of the domains on which the caller has a role; None: all domains."""
        if self.bound_to is not None:
            return frozenset()
        if self.is_operator or self.is_auditor or self.has_open_reading:
            return None
        return self.domains.keys()

    @property
    def managed(self) -> Collection[int] | None:
        """Return the ids of the projects that the caller manages; None: all projects."""
        if not self.limit.includes(Role.MANAGER):
            return frozenset()
        if self.is_operator:
            return self.bound_to
        managed = (key for key, role in self.projects.items() if role is Role.MANAGER)
        return frozenset(key for key in managed if self.bound_to is None or key in self.bound_to)

    def role_on(self, place: Place) -> Role | None:
        """Return the role on a project; None: the caller may not know that it exists."""
        readable = self.readable
        if readable is not None and place.project_id not in readable:
            return None
        if self.is_operator:
            return self.limit
        return self.projects.get(place.project_id, Role.VIEWER).capped(self.limit)

    def role_on_domain(self, domain_id: int) -> Role | None:
        """Return the role on all projects of a domain; None: the caller has none."""
        readable = self.readable_domains
        if readable is not None and domain_id not in readable:
            return None
        if self.is_operator:
            return self.limit
        return self.domains.get(domain_id, Role.VIEWER).capped(self.limit)


_NEEDED = {
    Permission.READ: Role.VIEWER,
    Permission.SUBMIT: Role.SUBMITTER,
    Permission.MANAGE: Role.MANAGER,
}


def may(access: Access, wanted: Permission, place: Place) -> bool:
    """Return whether the caller may do `wanted` on an object at `place`."""
    role = access.role_on(place)
    if role is None:
        return False
    if wanted in (Permission.CHANGE, Permission.EXEC):
        is_own = place.owner_id == access.user_id
        return role.includes(Role.SUBMITTER if is_own else Role.MANAGER)
    return role.includes(_NEEDED[wanted])


def may_revoke(access: Access, *, owner_id: int, bound_to: Collection[int] | None) -> bool:
    """Return whether the caller may list and revoke a token of `owner_id`.

    Operators may revoke every token, managers those that are limited to projects that they manage,
    and users their own; with a token that is limited to projects, only those limited to these.
    """
    if access.may_operate:
        return True
    bound = None if bound_to is None else frozenset(bound_to)
    if access.user_id == owner_id and _is_within(bound, access.bound_to):
        return True
    return bound is not None and _is_within(bound, access.managed)


def _is_within(bound: frozenset[int] | None, limit: Collection[int] | None) -> bool:
    """Return whether all projects of a token are in `limit`; None: all projects."""
    return limit is None or (bound is not None and bound <= frozenset(limit))


def max_days(giver: Role) -> int:
    """Return the longest life of a token that a caller with the role may create, in days."""
    return MAX_OPERATOR_DAYS if giver is Role.OPERATOR else MAX_DAYS


def check_grant(
    *,
    giver: Role,
    receiver: Role,
    role: Role,
    days: int,
    is_own: bool,
    is_bound: bool = False,
    giver_is_bound: bool = False,
    manages_receiver: bool = False,
) -> timedelta:
    """Return the life of a token with `role` for a user with the role `receiver`.

    `giver`: the role of the token that requests it. `is_own`: the token is for the caller.
    `is_bound`: it is limited to projects, which the caller can read. `manages_receiver`: it is for
    a service account of a project that the caller manages. Raise NotPermitted.
    """
    if not giver.includes(Role.SUBMITTER):
        raise NotPermitted("a token with the role viewer cannot create tokens")
    if not (is_own or manages_receiver or giver is Role.OPERATOR):
        raise NotPermitted("only operators may create tokens for other users")
    if giver_is_bound and not is_bound:
        raise NotPermitted(
            "a token that is limited to projects can only create tokens that are limited to some of"
            " them: name the projects"
        )
    if is_bound and role is Role.OPERATOR:
        raise NotPermitted("a token that is limited to projects cannot have the role operator")
    if not giver.includes(role):
        raise NotPermitted(f"a token with the role {giver} cannot create one with the role {role}")
    if not receiver.includes(role):
        raise NotPermitted(f"the token cannot have the role {role}: its user is no {role}")
    limit = max_days(giver)
    if days > limit:
        raise NotPermitted(f"expires_in_days: at most {limit} days are permitted")
    return timedelta(days=days)
