"""Admin pages of groups: their users and their roles."""

from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as StockGroupAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import NOTHING, row_link
from controlplane.admin.base import StyledAdmin, column, delete_each
from controlplane.admin.fields import RowsField
from controlplane.admin.tenancy.members import MAX_SHOWN, ChangedByOperators, roles_of
from controlplane.commands.tenancy.groups import create_group, delete_group, set_group_users
from controlplane.queries.tenancy.groups import counted_groups

admin.site.unregister(Group)


class GroupForm(forms.ModelForm):
    """The users of a group, and the name of a new one."""

    users = RowsField(
        User.objects.order_by("username"),
        help_text="They have the roles of the group. The OpenID provider adds and removes its own"
        " users at each login, if the groups of the provider are mapped to this group.",
    )

    class Meta:
        model = Group
        fields = ("name",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.initial["users"] = list(self.instance.user_set.values_list("pk", flat=True))


@admin.register(Group)
class GroupAdmin(ChangedByOperators, StockGroupAdmin, StyledAdmin):  # type: ignore[misc]
    """Groups by name, which operators change. A group cannot be renamed: settings may name it."""

    form = GroupForm
    filter_horizontal = ()
    list_display = ("name", "user_count", "role_count")

    user_count = column(lambda group: group.user_count, "users", ordering="user_count")
    role_count = column(lambda group: group.role_count, "roles", ordering="role_count")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        """Return the groups with the numbers of their users and roles."""
        return counted_groups(super().get_queryset(request))

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fields: a form of the users only for operators."""
        if obj is None:
            return [(None, {"fields": ("name", "users")})]
        users = "users" if self.has_change_permission(request, obj) else "shown_users"
        return [(None, {"fields": ("name", users, "roles")})]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Return the name of an existing group, and what is only shown."""
        return [] if obj is None else ["name", "shown_users", "roles"]

    def save_model(self, request: HttpRequest, obj: Group, form: Any, change: bool) -> None:
        """Create the group and set its users with commands, which write the audit log."""
        actor, now = request.user.get_username(), clock.now()
        if not change:
            create_group(name=obj.name, actor=actor, now=now)
            obj.pk = Group.objects.get(name=obj.name).pk
        users = [user.pk for user in form.cleaned_data["users"]]
        set_group_users(group_id=obj.pk, user_ids=users, actor=actor, now=now)

    def delete_model(self, request: HttpRequest, obj: Group) -> None:
        """Delete the group with its roles."""
        delete_group(group_id=obj.pk, actor=request.user.get_username(), now=clock.now())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Group]) -> None:
        """Delete the groups with their roles."""
        delete_each(queryset, partial(self.delete_model, request))

    @admin.display(description="Users")
    def shown_users(self, group: Group) -> SafeString | str:
        """Return the users."""
        users = group.user_set.order_by("username")[:MAX_SHOWN]
        return format_html_join(", ", "{}", ((row_link(user, user),) for user in users)) or NOTHING

    @admin.display(description="Roles")
    def roles(self, group: Group) -> SafeString:
        """Return the roles of the group."""
        return roles_of(group)
