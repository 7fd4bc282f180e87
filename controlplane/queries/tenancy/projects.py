"""Load projects, and the members of projects, of domains and of the installation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import Group, User
from django.db.models import OuterRef, Q, QuerySet, Subquery

from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Access, Place, Role
from controlplane.models import Domain, Membership, Project, ServiceAccount
from controlplane.queries.holds import load_project_holds
from controlplane.queries.tenancy.stored_bytes import count_stored_bytes, load_limits

GROUPS, USERS = "groups", "users"


@dataclass(frozen=True, slots=True)
class ReadableProject:
    """A project with the role of its reader.

    `stored_bytes`: what the store has for it; `stored_bytes_limit`: None without a limit. `hold`:
    the open hold of all its jobs.
    """

    name: str
    domain: str
    project: str
    role: Role
    archived_at: datetime | None
    stored_bytes: int
    stored_bytes_limit: int | None
    hold: Mapping[str, Any] | None

    @property
    def archived(self) -> bool:
        """Return whether the project accepts no new jobs and secrets."""
        return self.archived_at is not None


def list_projects(access: Access, *, after: str | None, limit: int) -> list[ReadableProject]:
    """Return the projects that the caller may read, by domain and name."""
    found = Project.objects.select_related("domain").order_by("domain__name", "name")
    if access.readable is not None:
        found = found.filter(pk__in=access.readable)
    if after is not None:
        domain, _, project = after.partition("/")
        found = found.filter(Q(domain__name__gt=domain) | Q(domain__name=domain, name__gt=project))
    return _shown(found[:limit], access)


def list_project_names(access: Access, *, limit: int) -> list[tuple[int, str]]:
    """Return ids and names of projects that the caller may read, by domain and name."""
    found = Project.objects.select_related("domain").order_by("domain__name", "name")
    if access.readable is not None:
        found = found.filter(pk__in=access.readable)
    return [(project.pk, str(project)) for project in found[:limit]]


def get_project(access: Access, domain: str, project: str) -> ReadableProject:
    """Return a project that the caller may read. Raise NotFound."""
    found = Project.objects.select_related("domain").filter(domain__name=domain, name=project)
    for shown in _shown(found, access):
        return shown
    raise NotFound(f"there is no project {domain}/{project}")


def _shown(found: Iterable[Project], access: Access) -> list[ReadableProject]:
    """Return those of the projects that the caller may read."""
    roles = [(row, access.role_on(Place(row.pk, row.domain_id))) for row in found]
    readable = [(row, role) for row, role in roles if role is not None]
    ids = [row.pk for row, _ in readable]
    used, limits, holds = count_stored_bytes(ids), load_limits(ids), load_project_holds(ids)
    return [
        ReadableProject(
            name=str(row),
            domain=row.domain.name,
            project=row.name,
            role=role,
            archived_at=row.archived_at,
            stored_bytes=used[row.pk],
            stored_bytes_limit=limits[row.pk],
            hold=holds[row.pk].as_document() if row.pk in holds else None,
        )
        for row, role in readable
    ]


@dataclass(frozen=True, slots=True)
class HeldRole:
    """A role on a project or, if `project` is None, on all projects of a domain."""

    domain: str
    project: str | None
    role: Role


def list_roles(access: Access) -> list[HeldRole]:
    """Return the roles of the caller by name, limited by the presented token.

    Those on projects that follow from a role on the domain are not repeated. Of a token that is
    limited to projects, they are the roles on these.
    """
    wanted = access.projects.keys() if access.bound_to is None else access.bound_to
    projects = Project.objects.select_related("domain").filter(pk__in=wanted)
    domains = Domain.objects.filter(pk__in=access.domains if access.bound_to is None else ())
    found = [
        HeldRole(domain.name, None, role)
        for domain in domains
        if (role := access.role_on_domain(domain.pk)) is not None
    ]
    found += [
        HeldRole(project.domain.name, project.name, role)
        for project in projects
        if (role := access.role_on(Place(project.pk, project.domain_id))) is not None
        and access.role_on_domain(project.domain_id) is not role
    ]
    return sorted(found, key=lambda held: (held.domain, held.project or ""))


def load_project(project_id: int) -> Project:
    """Return the row of a project, with its domain."""
    return Project.objects.select_related("domain").get(pk=project_id)


def load_domain(domain_id: int) -> Domain:
    """Return the row of a domain."""
    return Domain.objects.get(pk=domain_id)


def list_members(
    project_id: int | None, domain_id: int | None, *, after: int | None, limit: int
) -> list[Membership]:
    """Return the roles on a project or on a domain, or those of auditors, oldest first."""
    found = _memberships(project_id, domain_id)
    if after is not None:
        found = found.filter(pk__gt=after)
    return list(found.order_by("pk")[:limit])


def get_member(project_id: int | None, domain_id: int | None, member: User | Group) -> Membership:
    """Return the role of a user or group on a project or on a domain, or that of an auditor."""
    found = _memberships(project_id, domain_id)
    return found.get(**{"user" if isinstance(member, User) else "group": member})


@dataclass(frozen=True, slots=True)
class ServiceAccountFacts:
    """An active service account. `role`: on its project; None: it has none there."""

    name: str
    role: str | None
    created_at: datetime


def list_service_accounts(
    project_id: int, *, after: str | None, limit: int
) -> list[ServiceAccountFacts]:
    """Return the active service accounts of a project by name."""
    found = _service_accounts(project_id).filter(user__username__gt=after or "")
    return [_facts_of(account) for account in found[:limit]]


def get_service_account(project_id: int, name: str) -> ServiceAccountFacts:
    """Return an active service account of a project. Raise NotFound."""
    for account in _service_accounts(project_id).filter(user__username=name):
        return _facts_of(account)
    raise NotFound(f"there is no service account {name}")


def _service_accounts(project_id: int) -> QuerySet[ServiceAccount]:
    role = Membership.objects.filter(user=OuterRef("user"), project=OuterRef("project"))
    found = ServiceAccount.objects.filter(project_id=project_id, user__is_active=True)
    return (
        found.select_related("user")
        .annotate(role=Subquery(role.values("role")[:1]))
        .order_by("user__username")
    )


def _facts_of(account: Any) -> ServiceAccountFacts:
    return ServiceAccountFacts(account.user.username, account.role, account.created_at)


def _memberships(project_id: int | None, domain_id: int | None) -> QuerySet[Membership]:
    found = Membership.objects.select_related("user", "group")
    scope: dict[str, Any] = {"project_id": project_id, "domain_id": domain_id}
    return found.filter(**scope)
