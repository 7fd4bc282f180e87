"""Admin pages of domains and projects: members, service accounts, and the archive."""

from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.apps import apps
from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import flag_badge, instant, list_link, meter, page_link, row_link
from controlplane.admin.base import ReadOnlyAdmin, Section, Table, column, confirmed_action
from controlplane.admin.fields import check_name
from controlplane.admin.tenancy.members import (
    MAX_SHOWN,
    add_address,
    describe_action,
    is_operator,
    members_table,
)
from controlplane.commands.jobs.holds import hold_project, release_project
from controlplane.commands.tenancy.projects import archive_project, create_project
from controlplane.domain.jobs.bulk import BulkAction
from controlplane.domain.placement.reasons.pending import explain_hold
from controlplane.models import Domain, Membership, Project, Quota, ServiceAccount
from controlplane.queries.holds import load_project_holds
from controlplane.queries.related_counts import count_by
from controlplane.queries.tenancy.stored_bytes import count_stored_bytes, load_limits

if apps.is_installed("unfold"):
    from unfold.widgets import UnfoldAdminTextInputWidget as TextInput
else:
    from django.forms import TextInput

_NO_MEMBERS = "none: only operators and auditors can read the work of this project"


class ProjectForm(forms.ModelForm):
    """The name of a new project in a present or a new domain."""

    new_domain = forms.CharField(
        required=False,
        max_length=63,
        validators=[check_name],
        help_text="Its name, if the domain does not exist yet.",
        widget=TextInput(),
    )

    class Meta:
        model = Project
        fields = ("domain", "name")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Auditors see the page of a project, not this form, and get no fields.
        for name in {"domain", "name"} & self.fields.keys():
            field: Any = self.fields[name]
            if name == "name":
                field.validators.append(check_name)
            else:
                field.required = False
                field.empty_label = "a new domain"

    def clean(self) -> dict[str, Any]:
        """Return the fields. Raise ValidationError unless they name one domain."""
        found: dict[str, Any] = super().clean() or {}
        if "domain" in found and "new_domain" in found:
            if (found["domain"] is None) == (not found["new_domain"]):
                raise forms.ValidationError("Choose a domain, or enter the name of a new one.")
            if found["new_domain"]:
                # If it exists, the new project must not be in it either.
                found["domain"] = Domain.objects.filter(name=found["new_domain"]).first()
        return found


@admin.register(Domain)
class DomainAdmin(ReadOnlyAdmin):
    """Domains by name. A new domain is created with its first project."""

    ordering: ClassVar = ("name",)
    list_display = ("name", "projects_now", "members_now")
    search_fields = ("name",)

    projects_now = column(lambda domain: domain.project_count, "projects")
    members_now = column(lambda domain: domain.member_count, "members of all its projects")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Domain]:
        """Return the domains with the numbers of their projects and members."""
        found: QuerySet[Domain] = super().get_queryset(request)
        return found.annotate(
            project_count=count_by(Project.objects, "domain_id"),
            member_count=count_by(Membership.objects, "domain_id"),
        )

    def heading(self, obj: Domain) -> dict[str, Any]:
        """Return the kind with the name, which projects share."""
        return {"title": f"Domain {obj.name}"}

    def facts(self, obj: Domain) -> list[tuple[str, Any]]:
        """Return the numbers of the lists, and the quota."""
        quota = Quota.objects.filter(domain=obj).first()
        return [
            ("projects", self.projects_now(obj)),
            ("members of all its projects", self.members_now(obj)),
            ("quota", _quota_link(quota, "domain")),
        ]

    def sections_for(self, request: HttpRequest, obj: Domain) -> list[Section]:
        """Return the projects, and the members of all of them."""
        projects = list(obj.projects.select_related("domain").order_by("name")[: MAX_SHOWN + 1])
        return [
            Table(
                "Projects",
                columns=("name", "state", "archived"),
                rows=[
                    (
                        page_link("project", project.pk, project),
                        _state_badge(project),
                        instant(project.archived_at),
                    )
                    for project in projects[:MAX_SHOWN]
                ],
                more=list_link("project", "All projects") if len(projects) > MAX_SHOWN else None,
            ),
            members_table(
                "Members of all its projects",
                Membership.objects.filter(domain=obj),
                may_change=is_operator(request),
            ),
        ]

    def page_links(self, request: HttpRequest, obj: Domain) -> list[tuple[str, str]]:
        """Return the forms that add a project and a member."""
        if not is_operator(request):
            return []
        add = reverse("admin:controlplane_project_add")
        return [
            ("Add a project", f"{add}?domain={obj.pk}"),
            ("Add a member", add_address(domain=obj.pk)),
        ]


@admin.register(Project)
class ProjectAdmin(ReadOnlyAdmin):
    """Projects by name, with their members. A project cannot be renamed or deleted."""

    form = ProjectForm
    ordering = ("domain__name", "name")
    list_display = ("full_name", "state", "archived")
    list_select_related = ("domain",)
    search_fields = ("name", "domain__name")
    search_help_text = "A part of the name of a project or domain"
    actions: ClassVar = ("hold", "release", "archive", "unarchive")

    full_name = column(str, "project", ordering="name")
    state = column(lambda project: _state_badge(project), "state")
    archived = column(lambda project: instant(project.archived_at), "archived")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator."""
        return is_operator(request)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fields of a new project."""
        return [(None, {"fields": ("domain", "new_domain", "name")})]

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        """Create the project with the command that the API uses."""
        present, new = form.cleaned_data["domain"], form.cleaned_data["new_domain"]
        domain = new if present is None else present.name
        actor = request.user.get_username()
        create_project(domain=domain, project=obj.name, actor=actor, now=clock.now())
        made = Project.objects.select_related("domain").get(domain__name=domain, name=obj.name)
        obj.pk, obj.domain = made.pk, made.domain

    def response_post_save_add(self, request: HttpRequest, obj: Project) -> HttpResponse:
        """Return the page of the new project, where members are added."""
        return HttpResponseRedirect(reverse("admin:controlplane_project_change", args=[obj.pk]))

    def heading(self, obj: Project) -> dict[str, Any]:
        """Return the title, the badge of the state, and the hold."""
        holds = load_project_holds([obj.pk]).values()
        notes = [explain_hold(replace(hold, project=""))["text"] for hold in holds]
        return {"title": f"Project {obj}", "badge": self.state(obj), "notes": notes}

    def facts(self, obj: Project) -> list[tuple[str, Any]]:
        """Return the domain, the archive, the stored bytes, and links to parts of the project."""
        quota = Quota.objects.filter(project=obj).first()
        used, limit = count_stored_bytes([obj.pk])[obj.pk], load_limits([obj.pk])[obj.pk]
        return [
            ("domain", page_link("domain", obj.domain_id, obj.domain.name)),
            ("archived", instant(obj.archived_at)),
            ("quota", _quota_link(quota, "project")),
            ("stored", meter("stored_bytes", used, limit)),
            ("lists", _lists_of(obj)),
        ]

    def sections_for(self, request: HttpRequest, obj: Project) -> list[Section]:
        """Return the members, also those of the domain, and the service accounts."""
        on_both = Q(project=obj) | Q(domain=obj.domain_id)
        members = Membership.objects.filter(on_both)
        accounts = ServiceAccount.objects.filter(project=obj).select_related("user")
        return [
            members_table("Members", members, may_change=is_operator(request), empty=_NO_MEMBERS),
            Table(
                "Service accounts",
                columns=("name", "state", "since"),
                rows=[
                    (
                        row_link(account.user, account.user),
                        "active" if account.user.is_active else "deleted",
                        instant(account.created_at),
                    )
                    for account in accounts.order_by("user__username")[:MAX_SHOWN]
                ],
                empty="none: cellrun service-account creates them",
            ),
        ]

    def page_links(self, request: HttpRequest, obj: Project) -> list[tuple[str, str]]:
        """Return the forms that add a member, and that cancel the jobs of the project."""
        links = []
        if is_operator(request):
            links.append(("Add a member", add_address(project=obj.pk)))
        if request.user.has_perm("controlplane.change_job"):
            filled = {"action": BulkAction.CANCEL, "project": f"{obj.domain.name}/{obj.name}"}
            address = reverse("admin:controlplane_bulkoperation_add")
            links.append(("Cancel all jobs", f"{address}?{urlencode(filled)}"))
        return links

    def page_actions(self, obj: Project) -> list[str]:
        """Return the actions that change the hold and the archive."""
        is_held = bool(load_project_holds([obj.pk]))
        return [
            "release" if is_held else "hold",
            "unarchive" if obj.archived_at else "archive",
        ]

    @confirmed_action(
        "Hold",
        title="Hold these projects?",
        text="No waiting task of these projects is placed until they are released, also of later"
        " jobs. Running tasks continue. The time does not count for scheduling timeouts.",
        button="Hold",
        done="Projects held",
        fields=("reason",),
    )
    def hold(self, request: HttpRequest, project: Project) -> None:
        """Place no waiting task of a project until its release."""
        hold_project(project_id=project.pk, **describe_action(request))

    @confirmed_action(
        "Release",
        title="Release these projects?",
        text="The waiting tasks of these projects may be placed again, except those of jobs that"
        " are held themselves.",
        button="Release",
        done="Projects released",
        fields=("reason",),
    )
    def release(self, request: HttpRequest, project: Project) -> None:
        """Release a project from its hold."""
        release_project(project_id=project.pk, **describe_action(request))

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


def _quota_link(quota: Quota | None, kind: str) -> SafeString | str:
    if quota is None:
        return f"that of each {kind} without a quota"
    return page_link("quota", quota.pk, "of its own")


def _lists_of(project: Project) -> SafeString:
    names = {"job": "jobs", "secret": "secrets", "cacheentry": "cache entries"}
    links = (list_link(model, text, project__id__exact=project.pk) for model, text in names.items())
    return format_html_join(", ", '<a class="cellrun-link" href="{1}">{0}</a>', links)


def _state_badge(project: Project) -> SafeString:
    is_active = project.archived_at is None
    return flag_badge("active" if is_active else "archived", good=is_active)
