"""Admin pages of one-off tasks: guid, lifecycle and claim."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString

from controlplane.admin.badges import (
    instant,
    lifecycle_badge,
    page_link,
    state_badge,
    with_note,
)
from controlplane.admin.base import IndexedFilter, ReadOnlyAdmin, column
from controlplane.contract.states import TaskState
from controlplane.domain.jobs.one_offs import Lifecycle, lifecycle_of
from controlplane.models import OneOff


class ResolvingFilter(IndexedFilter):
    """A filter for one-off tasks that are being resolved."""

    title = "lifecycle"
    parameter_name = "resolving"
    options: ClassVar = {"yes": ("Resolving", ~Q(claim=None))}


@admin.register(OneOff)
class OneOffAdmin(ReadOnlyAdmin):
    """One-off tasks, newest first; the page of each redirects to its task."""

    ordering: ClassVar = ("-task_id",)
    list_display = ("guid", "domain", "task_link", "shown_lifecycle", "shown_state", "claimed")
    sortable_by = ("task_link",)  # an index serves this
    list_filter = (ResolvingFilter,)
    list_select_related = ("task", "task__job", "task__group")
    search_fields = ("guid",)
    search_help_text = "The whole guid or domain of a one-off task"
    defer_fields: ClassVar = (
        "task__job__spec",
        "task__job__annotation",
        "task__group__launch",
    )

    def matching(self, term: str) -> Q:
        """Match whole guids and domains, which are indexed."""
        return Q(guid=term) | Q(domain=term)

    task_link = column(
        lambda one_off: page_link("task", one_off.task_id, f"task {one_off.task_id}"),
        "task",
        ordering="task_id",
    )
    shown_lifecycle = column(
        lambda one_off: shown_lifecycle(one_off, TaskState(one_off.task.state)), "lifecycle"
    )
    shown_state = column(
        lambda one_off: with_note(state_badge(one_off.task.state), one_off.task.failure_reason),
        "state",
    )
    claimed = column(lambda one_off: instant(one_off.claimed_at), "claimed")

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Redirect to the page of the task."""
        if request.method not in ("GET", "HEAD") or not object_id.isdigit():
            return super().change_view(request, object_id, form_url, extra_context)
        address = reverse("admin:controlplane_task_change", args=[object_id])
        return HttpResponseRedirect(address)


def shown_lifecycle(one_off: OneOff, state: TaskState) -> SafeString:
    """Return the lifecycle of a one-off task, with the holder of its claim."""
    name = Lifecycle.RESOLVING if one_off.claim else lifecycle_of(state)
    return with_note(lifecycle_badge(name), f"by {one_off.claimed_by}" if one_off.claim else "")


def one_off_facts(one_off: OneOff | None, state: TaskState) -> list[tuple[str, Any]]:
    """Return the facts of a one-off task for its task's page; empty for other tasks."""
    if one_off is None:
        return []
    return [
        ("guid", one_off.guid),
        ("domain", one_off.domain),
        ("lifecycle", shown_lifecycle(one_off, state)),
        ("claim", one_off.claim),
        ("claimed", instant(one_off.claimed_at)),
    ]
