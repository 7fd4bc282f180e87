"""Admin pages of users: their roles, groups, password, and permissions in the admin."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.admin import UserAdmin as StockUserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.base import StyledAdmin, confirmed_action, loaded_column
from controlplane.admin.fields import RowsField
from controlplane.admin.tenancy.members import is_operator, roles_of
from controlplane.commands.tenancy.accounts import delete_users, describe_user, record_user
from controlplane.commands.tenancy.totp import reset_totp
from controlplane.queries.tenancy.accounts import find_totp_users

if apps.is_installed("unfold"):
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
else:
    from django.contrib.auth.forms import (
        AdminPasswordChangeForm,
        UserChangeForm,
    )
    from django.contrib.auth.forms import AdminUserCreationForm as UserCreationForm

admin.site.unregister(User)


class UserForm(UserChangeForm):
    """Django's form of a user, with fields to search groups and permissions."""

    groups = RowsField(
        Group.objects.order_by("name"),
        help_text="The user has the roles of these groups.",
    )
    user_permissions = RowsField(
        Permission.objects.select_related("content_type"),
        label="Permissions in the admin",
        help_text="Of staff that are no operators. Roles need none.",
    )


@admin.register(User)
class UserAdmin(StockUserAdmin, StyledAdmin):  # type: ignore[misc]
    """Django's user admin in this site's style."""

    form = UserForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = (
        "username",
        "is_staff",
        "is_superuser",
        "is_active",
        "second_factor",
        "last_login",
    )
    actions = ("reset_second_factor",)
    filter_horizontal = ()
    fieldsets: ClassVar = (
        (None, {"fields": ("username", "password", "is_active")}),
        ("Roles on projects", {"fields": ("roles", "groups")}),
        (
            "Admin",
            {
                "fields": ("is_superuser", "is_staff", "user_permissions"),
                "description": "Operators have staff status and superuser status. Auditors need"
                " neither.",
            },
        ),
        ("Personal info", {"fields": ("first_name", "last_name", "email")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )

    second_factor = loaded_column(lambda user, loaded: "yes" if loaded else None, "second factor")

    def load(self, rows: list[Any]) -> Mapping[Any, Any]:
        """Return the ids of users with a second factor."""
        return dict.fromkeys(find_totp_users(user.pk for user in rows), True)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator."""
        return is_operator(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Return the roles, which the pages of memberships change."""
        return [] if obj is None else ["roles"]

    @admin.display(description="Roles")
    def roles(self, user: User) -> SafeString:
        """Return the roles of the user and of its groups."""
        return roles_of(user)

    @confirmed_action(
        "Reset the second factor",
        title="Reset the second factor of these users?",
        text="They can log in with their passwords alone until they set up a new second factor."
        " Make sure that the request came from the user.",
        button="Reset",
        done="Second factors reset",
    )
    def reset_second_factor(self, request: HttpRequest, user: User) -> None:
        """Delete the second factor of a user."""
        reset_totp(user=user, actor=request.user.get_username(), now=clock.now())

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Return the form; the audit log gets the changes that it saves."""
        with transaction.atomic():
            before = None
            if request.method == "POST" and object_id is not None:
                before = self._find(request, object_id)
            response: HttpResponse = super().changeform_view(
                request, object_id, form_url, extra_context
            )
            self._record(before)
        return response

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save groups and permissions, after which a new user is complete."""
        super().save_related(request, form, formsets, change)
        if not change:
            record_user(form.instance, {})

    def user_change_password(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the form of a user's password; the audit log gets the change, not the password."""
        with transaction.atomic():
            before = self._find(request, kwargs["id"]) if request.method == "POST" else None
            response: HttpResponse = super().user_change_password(request, *args, **kwargs)
            self._record(before)
        return response

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        """Delete a user."""
        delete_users([obj.pk])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """Delete users."""
        delete_users(list(queryset.values_list("pk", flat=True)))

    def _find(self, request: HttpRequest, object_id: str) -> tuple[int, dict[str, Any]] | None:
        user = self.get_object(request, unquote(object_id))
        return None if user is None else (user.pk, describe_user(user))

    def _record(self, before: tuple[int, dict[str, Any]] | None) -> None:
        if before is not None:
            user = User.objects.filter(pk=before[0]).first()
            if user is not None:
                record_user(user, before[1])
