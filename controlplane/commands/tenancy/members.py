"""Grant and remove roles of users and groups on projects, domains and the installation."""

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import Group, User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import AUDITOR, Role
from controlplane.models import Domain, Membership, Project


@dataclass(frozen=True, slots=True)
class MemberScope:
    """A project, or all projects of a domain; without both, the installation."""

    project: Project | None = None
    domain: Domain | None = None

    def __str__(self) -> str:
        if self.project is not None:
            return f"project {self.project}"
        return "the installation" if self.domain is None else f"domain {self.domain}"


INSTALLATION = MemberScope()


def put_member(
    *, scope: MemberScope, member: User | Group, role: Role | None, actor: str, now: datetime
) -> bool:
    """Give a user or group a role on a scope in place of a present one. Return whether it is new.

    `role`: None on the installation, where the only role is that of an auditor.
    """
    name = AUDITOR if role is None else role.value
    with transaction.atomic():
        membership, is_new = Membership.objects.select_for_update(no_key=True).get_or_create(
            **_key(scope, member), defaults={"role": name, "created_at": now}
        )
        before = None if is_new else membership.role
        if before != name:
            Membership.objects.filter(pk=membership.pk).update(role=name)
            _audit(Action.GRANT_ROLE, scope, member, before, name, actor, now)
    return is_new


def remove_member(
    *, scope: MemberScope, member: User | Group, actor: str | None, now: datetime | None
) -> None:
    """Remove the role of a user or group on a scope. Raise NotFound."""
    with transaction.atomic():
        found = Membership.objects.select_for_update().filter(**_key(scope, member)).first()
        if found is None:
            raise NotFound(f"{member} has no role on {scope}")
        _remove(found, scope, member, actor, now)


def remove_all_roles(
    member: User | Group, *, actor: str | None = None, now: datetime | None = None
) -> None:
    """Remove every role of a user or group that will be deleted."""
    held = Membership.objects.select_for_update(of=("self",)).filter(**{_kind(member): member})
    with transaction.atomic():
        for found in held.select_related("domain", "project__domain").order_by("pk"):
            scope = MemberScope(project=found.project, domain=found.domain)
            _remove(found, scope, member, actor, now)


def _remove(
    found: Membership,
    scope: MemberScope,
    member: User | Group,
    actor: str | None,
    now: datetime | None,
) -> None:
    """Remove a role whose row is locked."""
    found.delete()
    _audit(Action.REMOVE_ROLE, scope, member, found.role, None, actor, now)


def _kind(member: User | Group) -> str:
    return "user" if isinstance(member, User) else "group"


def _key(scope: MemberScope, member: User | Group) -> dict[str, object]:
    return {
        "user": member if isinstance(member, User) else None,
        "group": member if isinstance(member, Group) else None,
        "project": scope.project,
        "domain": scope.domain,
    }


def _audit(
    action: Action,
    scope: MemberScope,
    member: User | Group,
    before: str | None,
    after: str | None,
    actor: str | None,
    now: datetime | None,
) -> None:
    entry = AuditEntry(
        action,
        f"role of {_kind(member)} {member} on {scope}",
        project_id=None if scope.project is None else scope.project.pk,
        domain_id=None if scope.domain is None else scope.domain.pk,
        before=None if before is None else {"role": before},
        after=None if after is None else {"role": after},
    )
    record(entry, actor=actor, now=now)
