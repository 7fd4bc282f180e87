"""Create and archive projects. The command creates a missing domain with its first project."""

from datetime import datetime

from django.db import transaction

from controlplane.commands.tenancy.audit_lines import add_line
from controlplane.models import Domain, Project


def create_project(*, domain: str, project: str, actor: str, now: datetime) -> bool:
    """Create a project, and its domain if it is missing. Return whether the project is new."""
    with transaction.atomic():
        owner, is_new_domain = Domain.objects.get_or_create(name=domain)
        _, is_new = Project.objects.get_or_create(domain=owner, name=project)
        if is_new_domain:
            add_line("created", f"domain {domain}", actor=actor, now=now)
        if is_new:
            add_line("created", f"project {domain}/{project}", actor=actor, now=now)
    return is_new


def archive_project(*, project_id: int, is_archived: bool, actor: str, now: datetime) -> None:
    """Archive a project, so that it accepts no new jobs and secrets, or revert that."""
    with transaction.atomic():
        found = Project.objects.select_for_update(no_key=True, of=("self",))
        project = found.select_related("domain").get(pk=project_id)
        if (project.archived_at is not None) is not is_archived:
            project.archived_at = now if is_archived else None
            project.save(update_fields=["archived_at"])
            action = "archived" if is_archived else "unarchived"
            add_line(action, f"project {project}", actor=actor, now=now)
