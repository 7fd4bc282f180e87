"""Admin pages of API tokens, which lists show by prefix only."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from controlplane import clock
from controlplane.admin.badges import instant
from controlplane.admin.base import (
    ReadOnlyAdmin,
    column,
    confirmed_action,
    loaded_column,
)
from controlplane.admin.fields import RowsField
from controlplane.commands.tenancy.tokens import (
    TokenRights,
    check_rights,
    grant_token,
    revoke_token,
)
from controlplane.domain.errors import NotFound, NotPermitted
from controlplane.domain.roles import (
    DEFAULT_DAYS,
    MAX_OPERATOR_DAYS,
    Role,
)
from controlplane.models import ApiToken, Project
from controlplane.queries.tenancy.accounts import (
    Credential,
    name_projects,
    session_credential,
)

if apps.is_installed("unfold"):
    from unfold.widgets import UnfoldAdminIntegerFieldWidget as IntegerInput
else:
    from django.forms import NumberInput as IntegerInput


class TokenForm(forms.ModelForm):
    """A token to create."""

    days = forms.IntegerField(
        label="Expires in days",
        initial=DEFAULT_DAYS,
        min_value=1,
        max_value=MAX_OPERATOR_DAYS,
        widget=IntegerInput(),
    )

    limited_to = RowsField(
        Project.objects.select_related("domain"),
        label="Limited to projects",
        help_text="None: all projects of the user.",
    )

    class Meta:
        model = ApiToken
        fields = ("user", "name", "role")

    giver: Credential

    def clean(self) -> dict[str, Any]:
        """Return the fields. Raise ValidationError if the user may not grant such a token."""
        found: dict[str, Any] = super().clean() or {}
        if {"user", "role", "days"} <= found.keys():
            try:
                check_rights(_rights_of(found), by=self.giver, user=found["user"])
            except (NotPermitted, NotFound) as refusal:
                raise forms.ValidationError(str(refusal)) from None
        return found


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """API tokens by their prefix; the rest of a token is not stored."""

    list_display = ("prefix", "name", "user", "role", "limited", "created", "expires", "used")
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "prefix")
    search_help_text = "A part of the name of a token or user, or a prefix"
    actions = ("revoke",)
    form = TokenForm
    autocomplete_fields = ("user",)

    limited = loaded_column(
        lambda token, names: "all projects" if names is None else ", ".join(names), "limited to"
    )
    created = column(lambda token: instant(token.created_at), "created", ordering="pk")
    expires = column(
        lambda token: instant(token.expires_at) if token.expires_at else "never", "expires"
    )
    used = column(
        lambda token: instant(token.last_used_at) if token.last_used_at else "never", "last used"
    )

    def load(self, rows: list[ApiToken]) -> dict[int, Any]:
        """Return the names of the projects that each token is limited to."""
        return {token.pk: token.projects for token in name_projects(rows, readable=None)}

    @confirmed_action(
        "Revoke",
        title="Revoke these tokens?",
        text="The next request with one of these tokens is refused. A revoked token cannot be"
        " restored.",
        button="Revoke",
        done="Tokens revoked",
    )
    def revoke(self, request: HttpRequest, token: ApiToken) -> None:
        """Revoke a token."""
        revoke_token(token_id=token.pk, by=_credential(request), now=clock.now())

    def page_actions(self, obj: ApiToken) -> list[str]:
        """Return the revocation."""
        return ["revoke"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may create tokens."""
        return bool(request.user.is_active and request.user.has_perm("controlplane.add_apitoken"))

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Return the form, which checks what the user may grant."""
        base: Any = super().get_form(request, obj, change, **kwargs)
        return type("TokenForm", (base,), {"giver": _credential(request)})

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        """Create the token with the command that the API uses."""
        obj.pk, obj.value = grant_token(
            by=_credential(request),
            user=obj.user,
            name=obj.name,
            rights=_rights_of(form.cleaned_data),
            now=clock.now(),
        )

    def response_add(
        self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Return the page with the value of the new token, which no other page shows."""
        context = {
            **self.admin_site.each_context(request),
            "title": f"Token {obj.name} of {obj.user}",
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            "token": obj.value,
            "list_url": self.list_url(),
        }
        return TemplateResponse(request, "controlplane/new_token.html", context)

    def facts(self, obj: ApiToken) -> list[tuple[str, Any]]:
        return [
            ("prefix", obj.prefix),
            ("name", obj.name),
            ("user", obj.user),
            ("role", obj.role),
            ("limited to", self.limited(obj)),
            ("created", instant(obj.created_at)),
            ("expires", self.expires(obj)),
            ("last used", self.used(obj)),
        ]


def _rights_of(fields: Mapping[str, Any]) -> TokenRights:
    """Return what the fields of a form permit."""
    projects = frozenset(project.pk for project in fields.get("limited_to") or ())
    return TokenRights(Role(fields["role"]), fields["days"], projects or None)


def _credential(request: HttpRequest) -> Credential:
    """Return the credential of the user who is logged in. Raise PermissionDenied."""
    if not isinstance(request.user, User):
        raise PermissionDenied
    return session_credential(request.user)
