"""What all pages share: read-only, bounded in cost, and actions that ask before they act.

The classes work on django-unfold's admin and on Django's own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
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


def column(
    render: Callable[[Any], Any], description: str, *, ordering: str | None = None
) -> Callable[[Any, Any], Any]:
    """Return a column of a list that shows what `render` makes of a row."""
    return admin.display(
        lambda model_admin, row: render(row), description=description, ordering=ordering
    )


def loaded_column(render: Callable[[Any, Any], Any], description: str) -> Callable[[Any, Any], Any]:
    """Return a column that shows what `render` makes of a row and of what `load` found for it."""
    return admin.display(
        lambda model_admin, row: render(row, model_admin.loaded(row)), description=description
    )


class StyledAdmin(_ModelAdmin):
    """A model's pages with bounded counts; still writable where its permissions allow it."""

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 25
    list_max_show_all = 25
    list_fullwidth = True
    empty_value_display = NOTHING
    linked_lookups: ClassVar[Sequence[str]] = ()
    """Lookups that other pages link to, besides those of the filters."""

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
        """Return a list that calls `load` once for its rows, so that columns ask for nothing."""
        base: type[ChangeList] = super().get_changelist(request, **kwargs)

        class RowCompletion(base):  # type: ignore[misc, valid-type]
            def get_results(self, request: HttpRequest) -> None:
                super().get_results(request)
                rows = list(self.result_list)  # type: ignore[has-type]
                self.model_admin.load_rows(rows)
                self.result_list = rows

        return RowCompletion

    def load(self, rows: list[Any]) -> Mapping[Any, Any]:
        """Return by key what the columns of `rows` show besides their own values."""
        return {}

    def load_rows(self, rows: list[Any]) -> None:
        """Call `load`, and keep what it returns for `loaded`."""
        found = self.load(rows)
        for row in rows:
            row.loaded = found.get(row.pk)

    def loaded(self, row: Any) -> Any:
        """Return what `load` found for the row; a list reads it once for all its rows."""
        if not hasattr(row, "loaded"):
            self.load_rows([row])
        return row.loaded

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow also `linked_lookups`."""
        return lookup in self.linked_lookups or bool(super().lookup_allowed(lookup, value, request))

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
    hides_deleted = False
    """Whether rows of deleted jobs are excluded."""

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
        found = super().get_queryset(request).defer(*self.defer_fields)
        return found.visible() if self.hides_deleted else found

    def matching(self, term: str) -> Q | None:
        """Return the condition of a search, which an index serves; None: the stock search."""
        return None

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search by `matching`."""
        term = search_term.strip()
        condition = self.matching(term) if term else Q()
        if condition is None:
            found: tuple[QuerySet[Any], bool] = super().get_search_results(
                request, queryset, search_term
            )
            return found
        return queryset.filter(condition), False

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


class IndexedFilter(admin.SimpleListFilter):
    """A filter with few choices, for which partial indexes exist."""

    options: ClassVar[Mapping[str, tuple[str, Q]]] = {}
    """By value in the address: text and condition."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return the choices beside all."""
        return [(value, text) for value, (text, _) in self.options.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the choice."""
        chosen = self.options.get(self.value() or "")
        return queryset.filter(chosen[1]) if chosen else queryset


def by_number(column: str, term: str) -> Q:
    """Return the condition that a column is the number `term`; false if that is no number."""
    is_number = term.isascii() and term.isdigit() and len(term) < 19
    return Q(**{column: int(term)}) if is_number else Q(pk__in=[])


@dataclass(frozen=True, slots=True)
class ActionConfirmation:
    """The confirmation before an action, and the action. `fields`: see confirm.html."""

    action: str
    title: str
    text: str
    button: str
    done: str
    act: Callable[[Any], object]
    fields: Sequence[str] = ()


def confirmed_action(
    description: str, *, title: str, text: str, button: str, done: str, fields: Sequence[str] = ()
) -> Callable[[Callable[[Any, HttpRequest, Any], object]], Any]:
    """Make an action, which asks first, of the decorated method, which acts on one row."""

    def decorate(method: Callable[[Any, HttpRequest, Any], object]) -> Any:
        @admin.action(description=description, permissions=["operate"])
        @wraps(method)
        def run_action(
            model_admin: StyledAdmin, request: HttpRequest, rows: QuerySet[Any]
        ) -> HttpResponse | None:
            act = partial(method, model_admin, request)
            name = method.__name__
            question = ActionConfirmation(name, title, text, button, done, act, fields)
            return model_admin.confirmed(request, rows, question)

        return run_action

    return decorate


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
