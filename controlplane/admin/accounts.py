"""Admin pages of users and of their API tokens, which lists show by prefix only."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.admin import UserAdmin as StockUserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from controlplane import clock
from controlplane.admin.badges import instant
from controlplane.admin.base import (
    ReadOnlyAdmin,
    StyledAdmin,
    column,
    confirmed_action,
    loaded_column,
)
from controlplane.commands.tenancy.accounts import delete_users, describe_user, record_user
from controlplane.commands.tenancy.tokens import (
    TokenRights,
    check_rights,
    grant_token,
    revoke_token,
)
from controlplane.commands.tenancy.totp import reset_totp
from controlplane.domain.errors import NotFound, NotPermitted
from controlplane.domain.roles import (
    DEFAULT_DAYS,
    MAX_OPERATOR_DAYS,
    Role,
)
from controlplane.models import ApiToken, Project
from controlplane.queries.tenancy.accounts import (
    Credential,
    find_totp_users,
    name_projects,
    session_credential,
)

if apps.is_installed("unfold"):
    from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
    from unfold.widgets import UnfoldAdminIntegerFieldWidget as IntegerInput
    from unfold.widgets import UnfoldAdminSelectMultipleWidget as SelectMultiple
else:
    from django.contrib.auth.forms import (
        AdminPasswordChangeForm,
        UserChangeForm,
    )
    from django.contrib.auth.forms import AdminUserCreationForm as UserCreationForm
    from django.forms import NumberInput as IntegerInput
    from django.forms import SelectMultiple

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(StockUserAdmin, StyledAdmin):  # type: ignore[misc]
    """Django's user admin in this site's style."""

    form = UserChangeForm
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

    second_factor = loaded_column(lambda user, loaded: "yes" if loaded else None, "second factor")

    def load(self, rows: list[Any]) -> Mapping[Any, Any]:
        """Return the ids of users with a second factor."""
        return dict.fromkeys(find_totp_users(user.pk for user in rows), True)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user is an operator."""
        return bool(request.user.is_active and request.user.is_superuser)

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


def change_own_password(request: HttpRequest) -> HttpResponse:
    """Return Django's form of the own password; the audit log gets the change."""
    with transaction.atomic():
        user = User.objects.filter(pk=request.user.pk or 0).first()
        before = None if user is None else describe_user(user)
        response = admin.site.password_change(request)
        if user is not None and before is not None:
            user.refresh_from_db()
            record_user(user, before)
    return response


class TokenForm(forms.ModelForm):
    """A token to create."""

    days = forms.IntegerField(
        label="Expires in days",
        initial=DEFAULT_DAYS,
        min_value=1,
        max_value=MAX_OPERATOR_DAYS,
        widget=IntegerInput(),
    )

    limited_to = forms.ModelMultipleChoiceField(
        Project.objects.select_related("domain"),
        label="Limited to projects",
        required=False,
        help_text="None: all projects of the user.",
        widget=SelectMultiple(),
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
    actions = ("revoke",)
    form = TokenForm
    autocomplete_fields = ("user",)

    limited = loaded_column(lambda token, names: ", ".join(names or ()), "limited to")
    created = column(lambda token: instant(token.created_at), "created", ordering="pk")
    expires = column(
        lambda token: instant(token.expires_at) if token.expires_at else "never", "expires"
    )
    used = column(
        lambda token: instant(token.last_used_at) if token.last_used_at else "never", "last used"
    )

    def load(self, rows: list[ApiToken]) -> dict[int, Any]:
        """Return the names of the projects that each token is limited to."""
        return {token.pk: token.projects for token in name_projects(rows)}

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
