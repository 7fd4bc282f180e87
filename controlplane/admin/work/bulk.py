"""Admin pages of bulk operations: a form with a preview, the progress, and the action stop."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import flag_badge, instant, meter, page_link, state_badge
from controlplane.admin.base import ReadOnlyAdmin, Section, Table, column, confirmed_action
from controlplane.admin.fields import read_reason
from controlplane.admin.live import SHORT_AGE_SECONDS
from controlplane.commands.bulk import BulkActor, start_bulk, stop_bulk
from controlplane.contract.states import TaskState
from controlplane.domain.errors import CellrunError
from controlplane.domain.jobs.bulk import BulkAction, BulkFilter, BulkState, check_bulk
from controlplane.domain.roles import Access
from controlplane.domain.state.states import JOB_STATES
from controlplane.models import BulkOperation
from controlplane.queries.jobs.bulk import MAX_COUNTED, BulkPreview, preview_bulk
from controlplane.queries.tenancy.access import load_admin_access
from controlplane.spec import InvalidSpec

_MAX_TEXT = 255


def _text_field(placeholder: str) -> forms.CharField:
    widget = forms.TextInput(attrs={"placeholder": placeholder})
    return forms.CharField(required=False, max_length=_MAX_TEXT, widget=widget)


class BulkForm(forms.Form):
    """The action and the jobs of a bulk operation."""

    action = forms.ChoiceField(choices=[(it.value, f"{it} jobs") for it in BulkAction])
    project, pool = _text_field("domain/project"), _text_field("")
    name, label = _text_field("the whole name"), _text_field("key=value")
    states = forms.TypedMultipleChoiceField(
        required=False,
        choices=[(f"{it:d}", it.name.lower()) for it in sorted(JOB_STATES)],
        coerce=lambda number: TaskState(int(number)),
        widget=forms.CheckboxSelectMultiple,
    )

    def clean_label(self) -> dict[str, str]:
        """Return the label as a mapping. Raise ValidationError."""
        text = self.cleaned_data["label"]
        key, found, value = text.partition("=")
        if text and not (found and key):
            raise forms.ValidationError("must be key=value")
        return {key: value} if text else {}

    @property
    def chosen(self) -> tuple[BulkAction, BulkFilter]:
        """Return the action and the filter of a valid form."""
        values = self.cleaned_data
        wanted = BulkFilter(
            values["project"] or None,
            values["pool"] or None,
            values["name"] or None,
            values["label"],
            values["states"],
        )
        return BulkAction(values["action"]), wanted


@admin.register(BulkOperation)
class BulkOperationAdmin(ReadOnlyAdmin):
    """Bulk operations, newest first. Users who may change jobs start and stop them."""

    list_display = (
        "number",
        "reason",
        "shown_state",
        "progress",
        "refused_jobs",
        "user",
        "created",
    )
    list_display_links = ("number", "reason")
    list_filter = ("state", "action")
    list_select_related = ("user",)
    max_age = SHORT_AGE_SECONDS
    actions = ("stop_operations",)

    number = column(str, "bulk operation", ordering="pk")
    shown_state = column(lambda it: _state(it), "state")
    progress = column(lambda it: _progress(it), "jobs")
    refused_jobs = column(lambda it: _refused(it), "refused", ordering="refused")
    created = column(lambda it: instant(it.created_at), "created", ordering="pk")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may change jobs."""
        return bool(request.user.has_perm("controlplane.change_job"))

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may change jobs."""
        return self.has_add_permission(request)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Return the form, with the preview of a filter in the address; a POST starts."""
        access = load_admin_access(request.user) if isinstance(request.user, User) else None
        if access is None:
            raise PermissionDenied
        sent = request.POST if request.method == "POST" else request.GET
        form, preview = BulkForm(sent if "action" in sent else None), None
        if form.is_valid():
            try:
                if request.method == "POST":
                    return self._start(request, form, access)
                action, wanted = form.chosen
                check_bulk(action, wanted, None)
                preview = preview_bulk(action, wanted, access=access)
            except (CellrunError, InvalidSpec) as fault:
                form.add_error(None, str(fault))
        return self._show_form(request, form, preview)

    def _start(self, request: HttpRequest, form: BulkForm, access: Access) -> HttpResponse:
        action, wanted = form.chosen
        assert isinstance(request.user, User)
        operation_id = start_bulk(
            action=action,
            wanted=wanted,
            reason=read_reason(request),
            by=BulkActor(request.user, access),
            now=clock.now(),
        )
        self.message_user(request, "The operation has started.", messages.SUCCESS)
        address = reverse("admin:controlplane_bulkoperation_change", args=[operation_id])
        return HttpResponseRedirect(address)

    def _show_form(
        self, request: HttpRequest, form: BulkForm, preview: BulkPreview | None
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": "Start a bulk operation",
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            "form": form,
            "preview": preview,
            "most": MAX_COUNTED,
            "sample": [
                (
                    page_link("job", job["id"], f"{job['name']} ({job['id']})"),
                    state_badge(TaskState[job["state"]]),
                    job["project"],
                )
                for job in (preview.sample if preview else ())
            ],
            "list_url": self.list_url(),
        }
        return TemplateResponse(request, "controlplane/bulk.html", context)

    @confirmed_action(
        "Stop",
        title="Stop these bulk operations?",
        text="No further job is processed. What was done is not undone.",
        button="Stop",
        done="Bulk operations stopped",
    )
    def stop_operations(self, request: HttpRequest, operation: BulkOperation) -> None:
        """Process no further job."""
        stop_bulk(operation_id=operation.pk, actor=str(request.user), now=clock.now())

    def page_actions(self, obj: BulkOperation) -> list[str]:
        """Return stop for a running operation."""
        return ["stop_operations"] * (obj.ended_at is None)

    def heading(self, obj: BulkOperation) -> Mapping[str, Any]:
        """Return its state, and why it was stopped."""
        return {"badge": _state(obj), "notes": [obj.ended_because]}

    def facts(self, obj: BulkOperation) -> list[tuple[str, Any]]:
        """Return the progress, and what was started by which user."""
        shown = {name: value for name, value in obj.filter.items() if value}
        filters = [f"{name} {_text(value)}" for name, value in shown.items()]
        return [
            ("progress", _progress(obj)),
            ("done", str(obj.done)),
            ("refused", _refused(obj)),
            ("jobs", ", ".join(filters)),
            ("reason", obj.reason),
            ("started by", obj.user),
            ("created", instant(obj.created_at)),
            ("last page", instant(obj.turn_at)),
            ("end", instant(obj.ended_at)),
        ]

    def sections(self, obj: BulkOperation) -> list[Section]:
        """Return the first refused jobs."""
        rows = [(page_link("job", it["job"], it["job"]), it["text"]) for it in obj.refusals]
        title = (
            "Refused jobs" if len(rows) == obj.refused else f"The first {len(rows)} refused jobs"
        )
        return [Table(title, anchor="refused", columns=("job", "reason"), rows=rows)]


def _refused(operation: BulkOperation) -> SafeString | str:
    if not operation.refused:
        return "0"
    return page_link("bulkoperation", operation.pk, operation.refused, anchor="refused")


def _progress(operation: BulkOperation) -> str:
    processed = operation.done + operation.refused
    return meter("jobs", processed, operation.expected, warns=False)


def _state(operation: BulkOperation) -> str:
    return flag_badge(operation.state, good=operation.state != BulkState.STOPPED)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={text}" for key, text in value.items())
    return " or ".join(value) if isinstance(value, list) else str(value)
