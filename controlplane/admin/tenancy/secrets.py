"""Admin pages that list and write secrets; they never show a value."""

from typing import Any, cast

from django import forms
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from controlplane import clock
from controlplane.admin.badges import instant
from controlplane.admin.base import StyledAdmin, column
from controlplane.admin.fields import check_name
from controlplane.commands.tenancy.secrets import drop_secrets, put_secret
from controlplane.domain.jobs.secrets import MAX_VALUE_BYTES
from controlplane.models import Secret

if apps.is_installed("unfold"):
    from unfold.widgets import UnfoldAdminPasswordWidget as PasswordInput
else:
    from django.forms import PasswordInput

_SUMMARY_FIELDS = ("size", "version", "registry_server", "writer", "created", "written")


class SecretForm(forms.ModelForm):
    """The name of a secret in a project, and its new value."""

    value = forms.CharField(
        widget=PasswordInput(render_value=False, attrs={"autocomplete": "new-password"}),
        strip=False,
        required=False,
        help_text="One line of text, at most 64 KiB. Leave it empty to keep the present value."
        " For other values and for registry logins use <code>cellrun secrets set</code>.",
    )

    class Meta:
        model = Secret
        fields = ("project", "name")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "name" in self.fields:
            cast(Any, self.fields["name"]).validators.append(check_name)

    def clean_value(self) -> str:
        """Return the value. Raise ValidationError, without the value, if it is too large."""
        value: str = self.cleaned_data["value"]
        if len(value.encode(errors="replace")) > MAX_VALUE_BYTES:
            raise forms.ValidationError(f"The value has more than {MAX_VALUE_BYTES} bytes.")
        if not value and self.instance.pk is None:
            raise forms.ValidationError("This field is required.")
        return value


@admin.register(Secret)
class SecretAdmin(StyledAdmin):
    """Secrets of all projects. The project and the name of a secret cannot be changed."""

    form = SecretForm
    ordering = ("project__domain__name", "project__name", "name")
    list_display = ("name", "project", "size", "version", "registry_server", "writer", "written")
    list_select_related = ("project__domain", "written_by")
    list_filter = ("project",)
    search_fields = ("name", "project__name")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Secret]:
        """Return the rows without their sealed values."""
        return super().get_queryset(request).defer("sealed")

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fields: the value only if the user may write it."""
        fieldsets: list[tuple[str | None, dict[str, Any]]] = [
            (None, {"fields": ("project", "name")})
        ]
        if obj is not None:
            fieldsets.append(("Present value", {"fields": _SUMMARY_FIELDS}))
        if obj is None or self.has_change_permission(request, obj):
            fieldsets.append(("New value", {"fields": ("value",)}))
        return fieldsets

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Return the project, name and summary of an existing secret."""
        return [] if obj is None else ["project", "name", *_SUMMARY_FIELDS]

    @method_decorator(sensitive_post_parameters("value"))
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the form; error reports omit the value."""
        response: HttpResponse = super().changeform_view(request, *args, **kwargs)
        return response

    def save_model(self, request: HttpRequest, obj: Secret, form: Any, change: bool) -> None:
        """Save the value with the command that the API uses; an empty one changes nothing."""
        value: str = form.cleaned_data["value"]
        if change and not value:
            return
        put_secret(
            project_id=obj.project_id,
            name=obj.name,
            value=value.encode(),
            writer=request.user if isinstance(request.user, User) else None,
            now=clock.now(),
        )
        obj.pk = Secret.objects.get(project_id=obj.project_id, name=obj.name).pk

    def delete_model(self, request: HttpRequest, obj: Secret) -> None:
        """Delete the secret; later attempts of tasks that name it fail."""
        drop_secrets([obj.pk])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Secret]) -> None:
        """Delete the secrets; later attempts of tasks that name them fail."""
        drop_secrets(list(queryset.values_list("pk", flat=True)))

    writer = column(
        lambda secret: secret.written_by.get_username() if secret.written_by else None,
        "written by",
        ordering="written_by__username",
    )
    created = column(lambda secret: instant(secret.created_at), "created", ordering="created_at")
    written = column(lambda secret: instant(secret.updated_at), "written", ordering="updated_at")
