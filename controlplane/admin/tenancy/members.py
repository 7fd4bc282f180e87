"""Admin pages of memberships: the roles of users and groups on projects, domains and everything."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import Group, User
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from controlplane import clock
from controlplane.admin.badges import (
    instant,
    list_link,
    page_link,
    row_link,
    shortened,
    small_table,
    with_note,
)
from controlplane.admin.base import StyledAdmin, Table, column, delete_each, loaded_column
from controlplane.admin.fields import read_reason
from controlplane.commands.tenancy.members import MemberScope, put_member, remove_member
from controlplane.domain.roles import AUDITOR, PROJECT_ROLES, Role
from controlplane.models import Membership
from controlplane.queries.tenancy.groups import list_users_of_groups

MAX_SHOWN = 200
_KEPT_ROLES = "_cellrun_roles"
_NAMES_WIDTH = 80


class MemberForm(forms.ModelForm):
    """The role of one user or group on one project, one domain, or the installation."""

    class Meta:
        model = Membership
        fields = ("user", "group", "project", "domain", "role")
        help_texts: ClassVar = {
            "user": "Choose a user or a group.",
            "project": "Choose a project or a domain; neither for an auditor.",
            "domain": "A role on a domain is a role on all its projects, also on later ones.",
            "role": "<b>viewer</b>: read work and its output.<br>"
            "<b>submitter</b>: also submit jobs, change own work and use secrets.<br>"
            "<b>manager</b>: also change all work, secrets and members.<br>"
            "<b>auditor</b>: read everything in the installation, and change nothing.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and "role" in self.fields:
            role: Any = self.fields["role"]
            role.choices = [(name, name) for name in _roles_on(self.instance)]


@admin.register(Membership)
class MembershipAdmin(StyledAdmin):
    """Roles, which operators change. Of a present one, only the role can be changed."""

    form = MemberForm
    ordering = ("-id",)
    list_display = ("member", "role", "scope", "since")
    list_display_links = ("member", "role")
    list_select_related = ("user", "group", "domain", "project__domain")
    list_filter = ("role",)
    search_fields = ("user__username", "group__name", "project__name", "domain__name")
    search_help_text = "A part of the name of a user, group, project or domain"
    autocomplete_fields = ("user", "group", "project", "domain")

    member = loaded_column(
        lambda found, names: with_note(format_html("{}", member_of(found)), _users_note(names)),
        "member",
    )
    scope = column(lambda found: scope_link(found), "on")
    since = column(lambda found: instant(found.created_at), "since", ordering="pk")

    def load(self, rows: list[Membership]) -> Mapping[int, list[str]]:
        """Return the users of the groups that have roles."""
        users = list_users_of_groups([found.group_id for found in rows if found.group_id])
        return {found.pk: users[found.group_id] for found in rows if found.group_id}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator: a role gives access to its project."""
        return is_operator(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether the user is an operator, and the role is not the only possible one."""
        is_fixed = isinstance(obj, Membership) and obj.role == AUDITOR
        return is_operator(request) and not is_fixed

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether the user is an operator."""
        return is_operator(request)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fields; of a present role, the member and the scope as text."""
        shown = ("member", "scope", "since", "role")
        names = ("user", "group", "project", "domain", "role") if obj is None else shown
        return [(None, {"fields": names})]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Return what cannot be changed of a present role."""
        return [] if obj is None else ["member", "scope", "since"]

    def save_model(self, request: HttpRequest, obj: Membership, form: Any, change: bool) -> None:
        """Give the role with the command that the API uses."""
        put_member(
            scope=scope_of(obj),
            member=_holder(obj),
            role=None if obj.role == AUDITOR else Role(obj.role),
            actor=request.user.get_username(),
            now=clock.now(),
        )
        found = Membership.objects.get(
            user=obj.user, group=obj.group, project=obj.project, domain=obj.domain
        )
        obj.pk, obj.created_at = found.pk, found.created_at

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        """Remove the role with the command that the API uses."""
        remove_member(
            scope=scope_of(obj),
            member=_holder(obj),
            actor=request.user.get_username(),
            now=clock.now(),
        )

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Membership]) -> None:
        """Remove the roles."""
        rows = queryset.select_related(*self.list_select_related)
        delete_each(rows, partial(self.delete_model, request))

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Return the confirmation; after the removal, the page that lists the other members."""
        found = self.get_object(request, unquote(object_id))
        response = super().delete_view(request, object_id, extra_context)
        if found is None or response.status_code != 302:
            return response
        return HttpResponseRedirect(scope_address(found))

    def response_post_save_add(self, request: HttpRequest, obj: Membership) -> HttpResponse:
        """Return to the page that lists the members."""
        return HttpResponseRedirect(scope_address(obj))

    def response_post_save_change(self, request: HttpRequest, obj: Membership) -> HttpResponse:
        """Return to the page that lists the members."""
        return HttpResponseRedirect(scope_address(obj))


def is_operator(request: HttpRequest) -> bool:
    """Return whether the user who is logged in is an operator."""
    return bool(request.user.is_active and request.user.is_superuser)


class ChangedByOperators:
    """Permissions of pages whose rows operators add, change and delete, as the API requires."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator."""
        return is_operator(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether the user is an operator."""
        return is_operator(request)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether the user is an operator."""
        return is_operator(request)


def describe_action(request: HttpRequest) -> dict[str, Any]:
    """Return the arguments of a command on work that the user has confirmed.

    Users that are no operators, but have Django's permission, act as managers.
    """
    return {
        "reason": read_reason(request),
        "role": Role.OPERATOR if is_operator(request) else Role.MANAGER,
        "actor": str(request.user),
        "now": clock.now(),
    }


def scope_of(found: Membership) -> MemberScope:
    """Return what the role is on."""
    return MemberScope(project=found.project, domain=found.domain)


def scope_address(found: Membership) -> str:
    """Return the URL of the page that lists the members of the same scope."""
    if found.project_id is not None:
        return reverse("admin:controlplane_project_change", args=[found.project_id])
    if found.domain_id is not None:
        return reverse("admin:controlplane_domain_change", args=[found.domain_id])
    return f"{reverse('admin:controlplane_membership_changelist')}?role__exact={AUDITOR}"


def scope_link(found: Membership) -> SafeString | str:
    """Return the scope with a link to its page."""
    if found.project_id is not None:
        return format_html("project {}", page_link("project", found.project_id, found.project))
    if found.domain_id is not None:
        return format_html("domain {}", page_link("domain", found.domain_id, found.domain))
    return "the installation"


def member_of(found: Membership) -> str:
    """Return the kind and the name of the member."""
    return f"user {found.user}" if found.user_id else f"group {found.group}"


def members_table(
    title: str, members: QuerySet[Membership], *, may_change: bool, empty: str = "none"
) -> Table:
    """Return the members of a page with the users of groups, and links to change or remove each."""
    found = members.select_related("user", "group", "domain", "project__domain")
    listed = list(found.order_by("pk")[: MAX_SHOWN + 1])
    shown = listed[:MAX_SHOWN]
    users = list_users_of_groups([each.group_id for each in shown if each.group_id])
    columns = ("member", "role", "on", *(("",) if may_change else ()), "since")
    return Table(
        title,
        columns=columns,
        rows=[
            (
                _linked_member(each, users),
                each.role,
                "project" if each.project_id else "domain",
                *((_change_links(each),) if may_change else ()),
                instant(each.created_at),
            )
            for each in shown
        ],
        empty=empty,
        more=list_link("membership", "All memberships") if len(listed) > MAX_SHOWN else None,
    )


def roles_of(holder: User | Group) -> SafeString:
    """Return the roles of a user, also those by its groups, or of a group, for its page.

    A page reads each of its fields five times: the row of the request keeps the first result.
    """
    kept = vars(holder)
    if _KEPT_ROLES not in kept:
        kept[_KEPT_ROLES] = _find_roles(holder)
    shown: SafeString = kept[_KEPT_ROLES]
    return shown


def _find_roles(holder: User | Group) -> SafeString:
    found = Membership.objects.select_related("user", "group", "domain", "project__domain")
    if isinstance(holder, Group):
        held = Q(group=holder)
    else:
        held = Q(user=holder) | Q(group__in=holder.groups.all())
    rows = [
        (
            page_link("membership", each.pk, each.role),
            scope_link(each),
            f"by the group {each.group}" if each.group_id and isinstance(holder, User) else "",
        )
        for each in found.filter(held).order_by("pk")[:MAX_SHOWN]
    ]
    if not rows:
        return mark_safe("none: add one on the page of a project or a domain")
    return small_table(("role", "on", ""), rows)


def add_address(**where: int) -> str:
    """Return the URL of the form that adds a member, filled in with what is known."""
    filled = "&".join(f"{name}={value}" for name, value in where.items())
    return f"{reverse('admin:controlplane_membership_add')}?{filled}"


def _linked_member(found: Membership, users: Mapping[int, list[str]]) -> SafeString:
    holder = _holder(found)
    if isinstance(holder, User):
        return format_html("user {}", row_link(holder, holder))
    return with_note(
        format_html("group {}", row_link(holder, holder)), _users_note(users[holder.pk])
    )


def _users_note(names: list[str] | None) -> str:
    """Return the users of a group; empty for a user."""
    if names is None:
        return ""
    return shortened(", ".join(names), _NAMES_WIDTH) or "no users"


def _holder(found: Membership) -> User | Group:
    holder = found.user or found.group
    assert holder is not None  # a constraint of the database
    return holder


def _change_links(found: Membership) -> SafeString:
    links = [
        (reverse(f"admin:controlplane_membership_{view}", args=[found.pk]), text)
        for view, text in (("change", "Change"), ("delete", "Remove"))
    ]
    return format_html_join(" ", '<a class="cellrun-link" href="{}">{}</a>', links)


def _roles_on(found: Membership) -> list[str]:
    return [AUDITOR] if found.role == AUDITOR else [str(role) for role in PROJECT_ROLES]
