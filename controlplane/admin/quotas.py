"""Admin pages of quotas: limits and usage of users, projects and domains."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin.badges import NOTHING, list_link, meter, small_table
from controlplane.admin.base import StyledAdmin, loaded_column
from controlplane.admin.fields import BytesField, ResourcesField
from controlplane.commands.tenancy.quotas import drop_quotas, save_quota
from controlplane.domain.scopes import ScopeKind
from controlplane.models import Quota
from controlplane.queries.placement.quotas import ScopeUsage
from controlplane.queries.views.quotas import QuotaUse, load_uses, scope_of
from controlplane.spec.limits import in_order

_SCOPES = ("user", "project", "domain", "default_for")


class QuotaForm(forms.ModelForm):
    """Limits; an empty field means no limit."""

    resources = ResourcesField(
        help_text="The maximum of each resource, one per line: <code>cpu: 4</code>,"
        " <code>memory: 64Gi</code>, <code>gpu: 2</code>, a named resource or a token. Resources"
        " that are not listed are not limited."
    )
    stored_bytes = BytesField(
        help_text="Of a project: the maximum of the bytes that the store has for it: inputs,"
        " output, artifacts, checkpoints; <code>50Gi</code>. Empty: no limit."
    )

    class Meta:
        model = Quota
        fields = "__all__"
        help_texts: ClassVar = {
            "running_tasks": "Maximum number of tasks that hold capacity, including tasks that are"
            " being stopped. Empty: no limit.",
            "running_jobs": "Maximum number of jobs with a task that holds capacity. Empty: no"
            " limit.",
            "pending_tasks": "Maximum number of waiting tasks that take part in placement. Empty:"
            " no limit.",
        }


@admin.register(Quota)
class QuotaAdmin(StyledAdmin):
    """Quotas with usage. The scope of an existing quota cannot be changed."""

    form = QuotaForm
    ordering = ("-id",)
    list_display = (
        "whose",
        "cpu",
        "memory",
        "running_tasks_used",
        "running_jobs_used",
        "waiting",
        "stored",
        "band",
    )
    list_select_related = ("user", "project__domain", "domain")
    search_fields = ("user__username", "project__name", "domain__name")
    autocomplete_fields = ("user",)
    fieldsets: ClassVar = (
        (
            "Quota of",
            {
                "fields": _SCOPES,
                "description": "Choose one: user, project, domain, or the kind of the scopes"
                " without a quota of their own.",
            },
        ),
        (
            "Limits over all pools",
            {"fields": ("resources", "running_tasks", "running_jobs", "pending_tasks")},
        ),
        ("Limit of the store", {"fields": ("stored_bytes",)}),
        ("Share and priority", {"fields": ("weight", "highest_band")}),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fields; for an existing quota, its usage instead of its scope."""
        first, *others = super().get_fieldsets(request, obj)
        if obj is None:
            return [first, *others]
        return [(None, {"fields": ("whose",)}), ("Current state", {"fields": ("in_use",)}), *others]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Return the scope and the usage of an existing quota."""
        return [] if obj is None else ["whose", "in_use", *_SCOPES]

    def save_model(self, request: HttpRequest, obj: Quota, form: Any, change: bool) -> None:
        """Save the quota with the command that the API uses."""
        save_quota(obj)

    def delete_model(self, request: HttpRequest, obj: Quota) -> None:
        """Remove the limits of the scope."""
        drop_quotas([obj.pk])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Quota]) -> None:
        """Remove the limits of the scope."""
        drop_quotas(list(queryset.values_list("pk", flat=True)))

    def load(self, rows: list[Any]) -> dict[int, QuotaUse]:
        """Return the usage of each quota."""
        scopes = {quota.pk: scope_of(quota).scope for quota in rows if not quota.default_for}
        uses = load_uses(list(scopes.values()))
        nothing = QuotaUse(ScopeUsage(), 0)
        return {
            quota.pk: uses[scopes[quota.pk]] if quota.pk in scopes else nothing for quota in rows
        }

    @admin.display(description="quota of")
    def whose(self, quota: Quota) -> SafeString:
        """Return the user, project or domain."""
        if quota.default_for:
            return format_html("each {} <b>without a quota</b>", quota.default_for)
        named = scope_of(quota)
        return format_html("{} <b>{}</b>", named.scope.kind, named.name)

    cpu = loaded_column(lambda quota, use: _meter(quota, use, "cpu_millis"), "cpu")
    memory = loaded_column(lambda quota, use: _meter(quota, use, "memory_mib"), "memory")
    running_tasks_used = loaded_column(
        lambda quota, use: _counted(
            meter("tasks", use.held.tasks, quota.running_tasks), quota, "task", open="held"
        ),
        "running tasks",
    )
    running_jobs_used = loaded_column(
        lambda quota, use: _counted(
            meter("jobs", len(use.held.jobs), quota.running_jobs), quota, "job", on_cells="yes"
        ),
        "running jobs",
    )
    waiting = loaded_column(
        lambda quota, use: _counted(
            meter("tasks", use.waiting, quota.pending_tasks), quota, "task", open="pending"
        ),
        "waiting tasks",
    )

    stored = loaded_column(
        lambda quota, use: meter("stored_bytes", use.stored_bytes or 0, quota.stored_bytes),
        "stored",
    )

    @admin.display(description="highest band")
    def band(self, quota: Quota) -> str:
        """Return the highest band of new jobs."""
        return quota.effective_band.name.lower()

    @admin.display(description="In use")
    def in_use(self, quota: Quota) -> SafeString | str:
        """Return the usage of everything that is limited or in use."""
        use: QuotaUse = self.loaded(quota)
        names = in_order({*quota.resources, *use.held.resources})
        rows: list[tuple[str, Any]] = [
            ("running tasks", self.running_tasks_used(quota)),
            ("running jobs", self.running_jobs_used(quota)),
            ("waiting tasks", self.waiting(quota)),
            *([("stored", self.stored(quota))] if quota.kind is ScopeKind.PROJECT else []),
            *(
                (name.removesuffix("_millis").removesuffix("_mib"), _meter(quota, use, name))
                for name in names
            ),
        ]
        return small_table(("limit", "in use"), rows)


# The parameters of a list that select the work of a scope.
_PARAMETERS: Mapping[str, Mapping[ScopeKind, str]] = {
    "task": {kind: kind.value for kind in ScopeKind},
    "job": {
        ScopeKind.USER: "owner__id__exact",
        ScopeKind.PROJECT: "project__id__exact",
        ScopeKind.DOMAIN: "project__domain__id__exact",
    },
}


def _counted(shown: SafeString | str, quota: Quota, model: str, **query: str) -> SafeString | str:
    """Return a count with a link to what it counts; nothing without a count."""
    if shown == NOTHING or quota.default_for:
        return shown
    scope = scope_of(quota).scope
    where = {_PARAMETERS[model][scope.kind]: scope.key}
    _, address = list_link(model, "", **query, **where)
    return format_html('<a class="cellrun-counted" href="{}">{}</a>', address, shown)


def _meter(quota: Quota, use: QuotaUse, name: str) -> SafeString | str:
    return meter(name, use.held.resources.get(name, 0), quota.resources.get(name))
