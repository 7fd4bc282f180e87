"""Roles of users of tests."""

from django.contrib.auth.models import User

from controlplane import clock
from controlplane.domain.roles import Role
from controlplane.models import Domain, Membership


def admit(user: User, role: Role, project: str | None = None, *, domain: str = "default") -> None:
    """Give a user a role on a project, or on a whole domain."""
    home = Domain.objects.get(name=domain)
    scope = {"project": home.projects.get(name=project)} if project else {"domain": home}
    Membership.objects.create(user=user, role=role, created_at=clock.now(), **scope)
