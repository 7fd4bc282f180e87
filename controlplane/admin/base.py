"""What all pages share: read-only, bounded in cost, and actions that ask before they act.

The classes work on django-unfold's admin and on Django's own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import reverse

from controlplane.admin.badges import NOTHING
from controlplane.admin.paging import BoundedPaginator, Pages
from controlplane.domain.errors import CellrunError

if apps.is_installed("unfold"):
    from unfold.admin import ModelAdmin as _ModelAdmin
else:
    _ModelAdmin = admin.ModelAdmin

STYLES = {"all": ["controlplane/admin.css"]}
# An action on more would hold a request for too long; the API does not have this limit.
MAX_SELECTED = 200


class StyledAdmin(_ModelAdmin):
    """A model's pages with bounded counts; still writable where its permissions allow it."""

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 25
    list_max_show_all = 25
    list_fullwidth = True
    empty_value_display = NOTHING

    class Media:
        css = STYLES

    def get_paginator(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> BoundedPaginator:
        """Return whether a filter is active, beyond the exclusion of deleted rows."""
        made: BoundedPaginator = super().get_paginator(request, queryset, *args, **kwargs)
        made.is_whole = queryset.query.where == self.get_queryset(request).query.where
        return made

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """A list whose rows `complete_rows` saw as a whole, so that columns ask for nothing."""
        base: type[ChangeList] = super().get_changelist(request, **kwargs)

        class Completed(base):  # type: ignore[misc, valid-type]
            def get_results(self, request: HttpRequest) -> None:
                super().get_results(request)
                rows = list(self.result_list)  # type: ignore[has-type]
                self.model_admin.complete_rows(rows)
                self.result_list = rows

        return Completed

    def complete_rows(self, rows: list[Any]) -> None:
        """Fetch for all rows of a page at once what its columns show."""

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may run actions: Django's permission to change this model."""
        name = f"{self.opts.app_label}.change_{self.opts.model_name}"
        return bool(request.user.is_active and request.user.has_perm(name))

    def list_url(self, **query: Any) -> str:
        """The address of the list of this model's rows."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return reverse(name, current_app=self.admin_site.name)

    def confirmed(
        self, request: HttpRequest, rows: QuerySet[Any], question: "ActionConfirmation"
    ) -> HttpResponse | None:
        """Ask `question` on a page of its own; when it was answered, act on each row."""
        chosen = list(rows[: MAX_SELECTED + 1])
        if len(chosen) > MAX_SELECTED:
            self.message_user(request, f"At most {MAX_SELECTED} at once.", messages.ERROR)
            return None
        if request.POST.get("confirmed") != "yes":
            context = {
                **self.admin_site.each_context(request),
                "title": question.title,
                "subtitle": None,
                "opts": self.opts,
                "media": self.media,
                "question": question,
                "rows": chosen,
                "checkbox_name": ACTION_CHECKBOX_NAME,
                "list_url": self.list_url(),
            }
            return TemplateResponse(request, "controlplane/confirm.html", context)
        done = 0
        for row in chosen:
            try:
                question.act(row)
                done += 1
            except CellrunError as fault:
                self.message_user(request, f"{row}: {fault}", messages.ERROR)
        if done:
            self.message_user(request, f"{question.done}: {done}", messages.SUCCESS)
        return None


class ReadOnlyAdmin(StyledAdmin):
    """Nothing is added, changed or deleted here; a row has a page of facts and sections."""

    ordering: ClassVar[Sequence[str]] = ("-id",)
    defer_fields: ClassVar[Sequence[str]] = ()
    """What lists never load: specs and launch documents may be megabytes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never: what may be done is an action."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never: retention deletes."""
        return False

    def get_queryset(self, request: HttpRequest) -> Any:
        """Without what no list shows."""
        return super().get_queryset(request).defer(*self.defer_fields)

    def facts(self, obj: Any) -> list[tuple[str, Any]]:
        """Return the names and values that the page shows for a row, without empty values."""
        raise NotImplementedError

    def sections(self, obj: Any) -> list["Section"]:
        """What follows the facts."""
        return []

    def sections_at(self, obj: Any, query: Mapping[str, str]) -> list["Section"]:
        """The sections that `query` of the page's address chooses, where one has several pages."""
        return self.sections(obj)

    def heading(self, obj: Any) -> Mapping[str, Any]:
        """Extra words of the page's head: `badge` and `notes`."""
        return {}

    def page_actions(self, obj: Any) -> list[str]:
        """Names of those actions that make sense for this row now."""
        return []

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page of one row."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if not self.has_view_permission(request, obj):
            raise PermissionDenied
        facts = [
            (name, value) for name, value in self.facts(obj) if value not in (None, "", NOTHING)
        ]
        context = {
            **self.admin_site.each_context(request),
            "title": str(obj),
            "subtitle": None,
            "opts": self.opts,
            "original": obj,
            "media": self.media,
            "facts": facts,
            "sections": self.sections_at(obj, request.GET),
            "page_actions": self._offered(request, obj),
            "list_url": self.list_url(),
            "checkbox_name": ACTION_CHECKBOX_NAME,
            **self.heading(obj),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "controlplane/detail.html", context)

    def _offered(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        allowed = self.get_actions(request)
        wanted = self.page_actions(obj)
        return [(name, str(allowed[name][2])) for name in wanted if name in allowed]


@dataclass(frozen=True, slots=True)
class ActionConfirmation:
    """What is asked before an action, and the action. `fields`: see confirm.html."""

    action: str
    title: str
    text: str
    button: str
    done: str
    act: Callable[[Any], object]
    fields: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a row's page. `anchor`: its name in addresses that lead to it."""

    title: str
    template: ClassVar[str] = ""
    more: tuple[str, str] | None = None
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table(Section):
    """A table. `more`: text and address of the list that continues it; `pages`: links to its other
    pages, where it is paginated.
    """

    template: ClassVar[str] = "controlplane/section_rows.html"
    columns: Sequence[str] = ()
    rows: Iterable[Sequence[Any]] = ()
    empty: str = "none"
    pages: Pages | None = None


@dataclass(frozen=True, slots=True)
class MonospaceText(Section):
    """Something as it is, in type of one width."""

    template: ClassVar[str] = "controlplane/section_text.html"
    text: str = ""
    is_open: bool = True
