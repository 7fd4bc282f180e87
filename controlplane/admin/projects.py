"""Admin pages of projects: members, service accounts, and the archive."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest

from controlplane import clock
from controlplane.admin.badges import flag_badge, instant, meter
from controlplane.admin.base import ReadOnlyAdmin, Section, Table, column, confirmed_action
from controlplane.commands.tenancy.projects import archive_project
from controlplane.models import Membership, Project, ServiceAccount
from controlplane.queries.tenancy.stored_bytes import count_stored_bytes, load_limits

_SHOWN_ROWS = 200


@admin.register(Project)
class ProjectAdmin(ReadOnlyAdmin):
    """Projects by name. `cellrun project` and `member` create projects and change members."""

    ordering = ("domain__name", "name")
    list_display = ("full_name", "state", "archived")
    list_select_related = ("domain",)
    search_fields = ("name", "domain__name")
    search_help_text = "A part of the name of a project or domain"
    actions: ClassVar = ("archive", "unarchive")

    full_name = column(str, "project", ordering="name")
    state = column(
        lambda project: flag_badge(
            "archived" if project.archived_at else "active", good=not project.archived_at
        ),
        "state",
    )
    archived = column(lambda project: instant(project.archived_at), "archived")

    def heading(self, obj: Project) -> dict[str, Any]:
        """Return the badge of the state."""
        return {"badge": self.state(obj)}

    def facts(self, obj: Project) -> list[tuple[str, Any]]:
        """Return the domain, since when the project is archived, and what is stored for it."""
        used, limit = count_stored_bytes([obj.pk])[obj.pk], load_limits([obj.pk])[obj.pk]
        return [
            ("domain", obj.domain.name),
            ("project", obj.name),
            ("archived", instant(obj.archived_at)),
            ("stored", meter("stored_bytes", used, limit)),
        ]

    def sections(self, obj: Project) -> list[Section]:
        """Return the members, also those of the domain, and the service accounts."""
        on_both = Q(project=obj) | Q(domain=obj.domain_id)
        members = Membership.objects.filter(on_both).select_related("user", "group")
        accounts = ServiceAccount.objects.filter(project=obj).select_related("user")
        return [
            Table(
                "Members",
                columns=("kind", "name", "role", "on", "since"),
                rows=[
                    (
                        "user" if found.user else "group",
                        found.user or found.group,
                        found.role,
                        "project" if found.project_id else "domain",
                        instant(found.created_at),
                    )
                    for found in members.order_by("pk")[:_SHOWN_ROWS]
                ],
            ),
            Table(
                "Service accounts",
                columns=("name", "state", "since"),
                rows=[
                    (
                        account.user,
                        "active" if account.user.is_active else "deleted",
                        instant(account.created_at),
                    )
                    for account in accounts.order_by("user__username")[:_SHOWN_ROWS]
                ],
            ),
        ]

    def page_actions(self, obj: Project) -> list[str]:
        """Return the action that changes the state."""
        return ["unarchive" if obj.archived_at else "archive"]

    @confirmed_action(
        "Archive",
        title="Archive these projects?",
        text="An archived project accepts no new jobs and secrets. Its jobs continue, and its"
        " members can read them.",
        button="Archive",
        done="Projects archived",
    )
    def archive(self, request: HttpRequest, project: Project) -> None:
        """Archive a project."""
        _set_archived(request, project, is_archived=True)

    @confirmed_action(
        "Unarchive",
        title="Unarchive these projects?",
        text="The projects accept jobs and secrets again.",
        button="Unarchive",
        done="Projects unarchived",
    )
    def unarchive(self, request: HttpRequest, project: Project) -> None:
        """Accept jobs and secrets in a project again."""
        _set_archived(request, project, is_archived=False)


def _set_archived(request: HttpRequest, project: Project, *, is_archived: bool) -> None:
    archive_project(
        project_id=project.pk, is_archived=is_archived, actor=str(request.user), now=clock.now()
    )
