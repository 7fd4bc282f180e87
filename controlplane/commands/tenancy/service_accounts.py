"""Create and delete service accounts: users for machines, without a password, of one project."""

from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.tenancy.members import MemberScope, put_member, remove_member
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.roles import Role
from controlplane.models import ApiToken, Membership, Project, ServiceAccount


def put_service_account(
    *, project: Project, name: str, role: Role, actor: str, now: datetime
) -> bool:
    """Create the service account `name` with a role on its project, or change the role.

    A deleted one of the project becomes active again. Return whether it was not active. Raise
    Conflict if another user has the name.
    """
    with transaction.atomic():
        user, is_new = User.objects.select_for_update().get_or_create(
            username=name, defaults={"is_active": False}
        )
        if is_new:
            user.set_unusable_password()
            ServiceAccount.objects.create(user=user, project=project, created_at=now)
        elif not ServiceAccount.objects.filter(user=user, project=project).exists():
            raise Conflict(f"there is another user with the name {name}")
        was_active = user.is_active
        if not was_active:
            user.is_active = True
            user.save()
            entry = _describe(Action.CREATE_SERVICE_ACCOUNT, name, project)
            record(entry, actor=actor, now=now)
        scope = MemberScope(project=project)
        put_member(scope=scope, member=user, role=role, actor=actor, now=now)
    return not was_active


def delete_service_account(*, project: Project, name: str, actor: str, now: datetime) -> None:
    """Deactivate a service account and delete its tokens; its jobs remain. Raise NotFound."""
    with transaction.atomic():
        user = (
            User.objects.select_for_update(of=("self",))
            .filter(username=name, is_active=True, service_account__project=project)
            .first()
        )
        if user is None:
            raise NotFound(f"there is no service account {name}")
        user.is_active = False
        user.save(update_fields=["is_active"])
        revoked, _ = ApiToken.objects.filter(user=user).delete()
        text = f"with {revoked} tokens"
        entry = _describe(Action.DELETE_SERVICE_ACCOUNT, name, project, text)
        record(entry, actor=actor, now=now)
        if Membership.objects.filter(user=user, project=project).exists():
            scope = MemberScope(project=project)
            remove_member(scope=scope, member=user, actor=actor, now=now)


def _describe(action: Action, name: str, project: Project, text: str = "") -> AuditEntry:
    subject = f"service account {name} of {project}"
    return AuditEntry(action, subject, text, project_id=project.pk)
