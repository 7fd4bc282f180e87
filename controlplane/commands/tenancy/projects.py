"""Create and archive projects. The command creates a missing domain with its first project."""

from datetime import datetime

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.models import Domain, Project


def create_project(*, domain: str, project: str, actor: str, now: datetime) -> bool:
    """Create a project, and its domain if it is missing. Return whether the project is new."""
    with transaction.atomic():
        owner, is_new_domain = Domain.objects.get_or_create(name=domain)
        made, is_new = Project.objects.get_or_create(domain=owner, name=project)
        if is_new_domain:
            entry = AuditEntry(Action.CREATE_DOMAIN, f"domain {domain}", domain_id=owner.pk)
            record(entry, actor=actor, now=now)
        if is_new:
            subject = f"project {domain}/{project}"
            entry = AuditEntry(Action.CREATE_PROJECT, subject, project_id=made.pk)
            record(entry, actor=actor, now=now)
    return is_new


def archive_project(*, project_id: int, is_archived: bool, actor: str, now: datetime) -> None:
    """Archive a project, so that it accepts no new jobs and secrets, or revert that."""
    with transaction.atomic():
        found = Project.objects.select_for_update(no_key=True, of=("self",))
        project = found.select_related("domain").get(pk=project_id)
        if (project.archived_at is not None) is not is_archived:
            project.archived_at = now if is_archived else None
            project.save(update_fields=["archived_at"])
            entry = AuditEntry(
                Action.CHANGE_PROJECT,
                f"project {project}",
                project_id=project_id,
                before={"archived": not is_archived},
                after={"archived": is_archived},
            )
            record(entry, actor=actor, now=now)
