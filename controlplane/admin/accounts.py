"""Admin pages of users and of their API tokens, which are shown by prefix only."""

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as StockUserAdmin
from django.contrib.auth.models import Group, User

from controlplane.admin.badges import instant
from controlplane.admin.base import ReadOnlyAdmin, StyledAdmin, column
from controlplane.models import ApiToken

if apps.is_installed("unfold"):
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
else:
    from django.contrib.auth.forms import (
        AdminPasswordChangeForm,
        UserChangeForm,
    )
    from django.contrib.auth.forms import AdminUserCreationForm as UserCreationForm

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(StockUserAdmin, StyledAdmin):  # type: ignore[misc]
    """Django's user admin in this site's style."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "is_staff", "is_superuser", "is_active", "last_login")


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """API tokens by their prefix; the rest of a token is not stored."""

    list_display = ("prefix", "name", "user", "shown_scopes", "created", "expires")
    list_select_related = ("user",)

    shown_scopes = column(lambda token: ", ".join(token.scopes), "scopes")
    created = column(lambda token: instant(token.created_at), "created", ordering="pk")
    expires = column(
        lambda token: instant(token.expires_at) if token.expires_at else "never", "expires"
    )

    def facts(self, obj: ApiToken) -> list[tuple[str, Any]]:
        return [
            ("prefix", obj.prefix),
            ("name", obj.name),
            ("user", obj.user),
            ("scopes", ", ".join(obj.scopes)),
            ("created", instant(obj.created_at)),
            ("expires", self.expires(obj)),
        ]
