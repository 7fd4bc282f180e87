"""Admin pages of OpenID identities: links between users of a provider and users."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from controlplane import clock
from controlplane.admin.badges import instant
from controlplane.admin.base import ReadOnlyAdmin, column, confirmed_action
from controlplane.commands.tenancy.identities import (
    IS_SERVICE_ACCOUNT,
    link_identity,
    unlink_identity,
)
from controlplane.models import OidcIdentity
from controlplane.queries.tenancy.accounts import find_home


class IdentityForm(forms.ModelForm):
    """A user of the provider that may log in as a user."""

    class Meta:
        model = OidcIdentity
        fields = ("user", "issuer", "subject")

    def clean_user(self) -> User:
        """Return the user. Raise ValidationError for a service account."""
        user: User = self.cleaned_data["user"]
        if find_home(user) is not None:
            raise ValidationError(IS_SERVICE_ACCOUNT)
        return user

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "issuer" in self.fields:
            self.fields["issuer"].initial = settings.CELLRUN.oidc_issuer


@admin.register(OidcIdentity)
class OidcIdentityAdmin(ReadOnlyAdmin):
    """Links are made at a first login, or here by an operator."""

    list_display = ("user", "subject", "issuer", "created", "used")
    list_select_related = ("user",)
    search_fields = ("user__username", "subject")
    actions = ("unlink",)
    form = IdentityForm
    autocomplete_fields = ("user",)

    created = column(lambda link: instant(link.created_at), "created", ordering="pk")
    used = column(
        lambda link: instant(link.last_login_at) if link.last_login_at else "never", "last login"
    )

    @confirmed_action(
        "Unlink",
        title="Unlink these identities?",
        text="Their next login with the provider is that of an unknown user. Sessions and API"
        " tokens of the users remain: deactivate a user to end them.",
        button="Unlink",
        done="Identities unlinked",
    )
    def unlink(self, request: HttpRequest, link: OidcIdentity) -> None:
        """Delete a link."""
        unlink_identity(link_id=link.pk, actor=request.user.get_username(), now=clock.now())

    def page_actions(self, obj: OidcIdentity) -> list[str]:
        """Return the action that deletes the link."""
        return ["unlink"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator: a link gives access to the linked user."""
        return bool(request.user.is_active and request.user.is_superuser)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator."""
        return self.has_add_permission(request)

    def save_model(self, request: HttpRequest, obj: OidcIdentity, form: Any, change: bool) -> None:
        """Create the link."""
        made = link_identity(
            user=obj.user,
            issuer=obj.issuer,
            subject=obj.subject,
            actor=request.user.get_username(),
            now=clock.now(),
        )
        obj.pk, obj.created_at = made.pk, made.created_at

    def facts(self, obj: OidcIdentity) -> list[tuple[str, Any]]:
        return [
            ("user", obj.user),
            ("subject", obj.subject),
            ("issuer", obj.issuer),
            ("created", instant(obj.created_at)),
            ("last login", self.used(obj)),
        ]
