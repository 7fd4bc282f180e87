"""Base classes of the admin pages: bounded queries, read-only rows, confirmed actions.

The classes work on django-unfold's admin and on Django's own.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, TypeVar

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from controlplane.admin.badges import NOTHING
from controlplane.admin.lists.paging import BoundedPaginator, Chip, Pages
from controlplane.admin.live import MAX_AGE_SECONDS, respond_live
from controlplane.contract.states import TaskState
from controlplane.domain.errors import CellrunError, NotFound
from controlplane.domain.state.states import COLOURS, JOB_STATES
from controlplane.queries.pages.versions import HistoryScope
from controlplane.spec import InvalidSpec

HAS_UNFOLD = apps.is_installed("unfold")
if HAS_UNFOLD:
    from controlplane.admin.lists.unfold import UnfoldListAdmin as _ModelAdmin
else:
    _ModelAdmin = admin.ModelAdmin  # type: ignore[misc, assignment]

T = TypeVar("T")
STYLES = {"all": ["controlplane/admin.css"]}
# An action on more would hold a request for too long; the API does not have this limit.
MAX_SELECTED = 200


def column(
    render: Callable[[Any], Any], description: str, *, ordering: str | None = None
) -> Callable[[Any, Any], Any]:
    """Return a list column that shows `render(row)`."""
    return admin.display(
        lambda model_admin, row: render(row), description=description, ordering=ordering
    )


def loaded_column(render: Callable[[Any, Any], Any], description: str) -> Callable[[Any, Any], Any]:
    """Return a list column that shows `render(row, loaded)`: see `StyledAdmin.load`."""
    return admin.display(
        lambda model_admin, row: render(row, model_admin.loaded(row)), description=description
    )


def delete_each(rows: Iterable[T], delete: Callable[[T], Any]) -> None:
    """Delete rows with a command; skip those that were removed meanwhile."""
    for row in rows:
        with suppress(NotFound):
            delete(row)


class StyledAdmin(_ModelAdmin):
    """Pages of a model with bounded counts; writable where permissions allow it."""

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # counts of each choice of each filter read whole tables
    list_per_page = 25
    list_max_show_all = 25
    list_fullwidth = True
    empty_value_display = NOTHING
    linked_lookups: ClassVar[Sequence[str]] = ()
    """Lookups that other pages link to, in addition to those of the filters."""

    class Media:
        css = STYLES

    def get_paginator(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> BoundedPaginator:
        """Return the paginator; `is_whole` if no filter is active except that of deleted rows."""
        made: BoundedPaginator = super().get_paginator(request, queryset, *args, **kwargs)
        made.is_whole = queryset.query.where == self.get_queryset(request).query.where
        return made

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return a list that calls `load` once for its rows, so that columns run no queries."""
        base: type[ChangeList] = super().get_changelist(request, **kwargs)

        class RowCompletion(base):  # type: ignore[misc, valid-type]
            def get_results(self, request: HttpRequest) -> None:
                super().get_results(request)
                self.result_count = self.paginator.count  # a page may have corrected an estimate
                rows = list(self.result_list)  # type: ignore[has-type]
                self.model_admin.load_rows(rows)
                self.result_list = rows

            def chips(self) -> list[list[Chip]]:
                return [it.chips(self) for it in self.filter_specs if isinstance(it, StateFilter)]

        return RowCompletion

    def load(self, rows: list[Any]) -> Mapping[Any, Any]:
        """Return additional values that columns show, by primary key of each row."""
        return {}

    def load_rows(self, rows: list[Any]) -> None:
        """Call `load` and attach its values to the rows."""
        found = self.load(rows)
        for row in rows:
            row.loaded = found.get(row.pk)

    def loaded(self, row: Any) -> Any:
        """Return the value of `load` for the row; a list calls `load` once for all rows."""
        if not hasattr(row, "loaded"):
            self.load_rows([row])
        return row.loaded

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow `linked_lookups` in addition to the filters."""
        return lookup in self.linked_lookups or bool(super().lookup_allowed(lookup, value, request))

    def may_view(self, request: HttpRequest, model: str) -> bool:
        """Return whether the user may view the rows of another model of this site."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.view_{model}"))

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may run actions: Django's permission to change the model."""
        name = f"{self.opts.app_label}.change_{self.opts.model_name}"
        return bool(request.user.is_active and request.user.has_perm(name))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Return the list; refuse actions to users who may run none, which Django ignores."""
        extra_context = {"title": capfirst(self.opts.verbose_name_plural), **(extra_context or {})}
        is_action = request.method == "POST" and "action" in request.POST
        if is_action and not self.get_actions(request):
            raise PermissionDenied
        response: HttpResponse = super().changelist_view(request, extra_context)
        return response

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Return the confirmation or delete the row; report why a command refuses that."""
        try:
            response: HttpResponse = super().delete_view(request, object_id, extra_context)
        except CellrunError as fault:  # such as: it was removed meanwhile
            self.message_user(request, str(fault), messages.ERROR)
            return HttpResponseRedirect(self.list_url())
        return response

    def list_url(self, **query: Any) -> str:
        """Return the URL of the list of this model's rows."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return reverse(name, current_app=self.admin_site.name)

    def return_url(self, request: HttpRequest, chosen: Sequence[Any]) -> str:
        """Return the page on which an action began: of its row if it still has one, or the list."""
        if request.POST.get("from_page") and len(chosen) == 1:
            [row] = chosen
            if self.get_queryset(request).filter(pk=row.pk).exists():
                name = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
                return reverse(name, args=[row.pk], current_app=self.admin_site.name)
        return request.get_full_path()

    def form_context(self, request: HttpRequest, chosen: Sequence[Any]) -> dict[str, Any]:
        """Return what the form of an action needs to be sent to the same list, and to return."""
        return {
            "checkbox_name": ACTION_CHECKBOX_NAME,
            "action_url": request.get_full_path(),
            "back_url": self.return_url(request, chosen),
            "from_page": request.POST.get("from_page", ""),
        }

    def confirmed(
        self, request: HttpRequest, rows: QuerySet[Any], confirmation: "ActionConfirmation"
    ) -> HttpResponse | None:
        """Return the confirmation page; after the confirmation, run the action on each row."""
        chosen = list(rows[: MAX_SELECTED + 1])
        if len(chosen) > MAX_SELECTED:
            self.message_user(request, f"Select at most {MAX_SELECTED} rows.", messages.ERROR)
            return None
        selected, chosen = chosen, [row for row in chosen if confirmation.applies(row)]
        note = confirmation.count.format(len(chosen), len(selected))
        if not chosen:
            self.message_user(request, note, messages.ERROR)
            return HttpResponseRedirect(self.return_url(request, selected))
        if request.POST.get("confirmed") != "yes":
            context = {
                **self.admin_site.each_context(request),
                "title": confirmation.title,
                "subtitle": None,
                "opts": self.opts,
                "media": self.media,
                "confirmation": confirmation,
                "rows": chosen,
                "note": note,
                **self.form_context(request, chosen),
            }
            return TemplateResponse(request, "controlplane/confirm.html", context)
        done = 0
        for row in chosen:
            try:
                confirmation.act(row)
                done += 1
            except (CellrunError, InvalidSpec) as fault:
                self.message_user(request, f"{row}: {fault}", messages.ERROR)
        if done:
            self.message_user(request, f"{confirmation.done}: {done}", messages.SUCCESS)
        return HttpResponseRedirect(self.return_url(request, chosen))


class ReadOnlyAdmin(StyledAdmin):
    """Read-only pages of a model: each row has a page with facts and sections."""

    ordering: ClassVar[Sequence[str]] = ("-id",)
    defer_fields: ClassVar[Sequence[str]] = ()
    """Fields that lists never load: specs and launch documents may be megabytes."""
    hides_deleted = False
    """Whether rows of deleted jobs are excluded."""
    max_age: ClassVar[int] = MAX_AGE_SECONDS
    """Seconds after which open pages refresh although the history of work did not change."""

    if HAS_UNFOLD:
        change_list_template = "controlplane/change_list.html"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: commands create rows."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: actions change rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: retention deletes rows."""
        return False

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the rows without `defer_fields`."""
        found = super().get_queryset(request).defer(*self.defer_fields)
        return found.visible() if self.hides_deleted else found

    def matching(self, term: str) -> Q | None:
        """Return the condition of a search by an index; None uses Django's search."""
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

    def leading_sections(self, request: HttpRequest, obj: Any) -> list["Section"]:
        """Return the sections above the facts: what needs attention first."""
        return []

    def sections(self, obj: Any) -> list["Section"]:
        """Return the sections below the facts."""
        return []

    def sections_for(self, request: HttpRequest, obj: Any) -> list["Section"]:
        """Return the sections for the user; the query selects the page of a paginated one."""
        return self.sections(obj)

    def page_links(self, request: HttpRequest, obj: Any) -> list[tuple[str, str]]:
        """Return texts and URLs of forms about this row that the user may send."""
        return []

    def heading(self, obj: Any) -> Mapping[str, Any]:
        """Return texts of the page's head: `title`, `badge` and `notes`."""
        return {}

    def page_actions(self, obj: Any) -> list[str]:
        """Return the names of the actions that apply to this row now."""
        return []

    def history_scope(self, obj: Any) -> HistoryScope:
        """Return the part of the history on which the page of a row depends."""
        return HistoryScope()

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Return the list, which refreshes itself."""
        respond = partial(super().changelist_view, request, extra_context)
        if request.method == "POST" or not self.has_view_permission(request):
            return respond()
        return respond_live(request, respond, scope=HistoryScope(), max_age=self.max_age)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Return the page of one row, which refreshes itself."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        if not self.has_view_permission(request, obj):
            raise PermissionDenied
        respond = partial(self._show, request, obj, extra_context)
        return respond_live(request, respond, scope=self.history_scope(obj), max_age=self.max_age)

    def _show(
        self, request: HttpRequest, obj: Any, extra_context: dict[str, Any] | None
    ) -> HttpResponse:
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
            "leading_sections": self.leading_sections(request, obj),
            "facts": facts,
            "sections": self.sections_for(request, obj),
            "page_links": self.page_links(request, obj),
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
    """Value in the URL -> text and condition."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return the choices other than All."""
        return [(value, text) for value, (text, _) in self.options.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the selected choice."""
        chosen = self.options.get(self.value() or "")
        return queryset.filter(chosen[1]) if chosen else queryset


class StateFilter(admin.SimpleListFilter):
    """A filter by state, which a list also shows as chips above its rows."""

    title = "state"
    parameter_name = "state__exact"
    states: ClassVar[Collection[TaskState]] = JOB_STATES
    colours: ClassVar[Mapping[str, str]] = {f"{it:d}": colour for it, colour in COLOURS.items()}
    """The colour of each value."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return the states in the order of a task's life."""
        return [(f"{it:d}", it.name.lower()) for it in COLOURS if it in self.states]

    def condition(self, state: TaskState, request: HttpRequest) -> Q:
        """Return the condition of a state, which an index finds."""
        return Q(state=state)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows in the selected state; none in an unknown one."""
        value = self.value()
        if value is None:
            return queryset
        known = [it for it in self.states if f"{it:d}" == value]
        return queryset.filter(self.condition(known[0], request)) if known else queryset.none()

    def chips(self, changelist: ChangeList) -> list[Chip]:
        """Return the choices as chips."""
        colours = {name: self.colours[value] for value, name in self.lookup_choices}
        return [
            Chip(
                text=str(choice["display"]),
                address=choice["query_string"],
                is_selected=bool(choice["selected"]),
                colour=colours.get(str(choice["display"]), ""),
            )
            for choice in self.choices(changelist)
        ]


def by_number(column: str, term: str) -> Q:
    """Return the condition that a column is the number `term`; false for any other text."""
    is_number = term.isascii() and term.isdigit() and len(term) < 19
    return Q(**{column: int(term)}) if is_number else Q(pk__in=[])


@dataclass(frozen=True, slots=True)
class ActionConfirmation:
    """An action and the texts of its page, confirm.html. Only rows to which it `applies` count."""

    action: str
    title: str
    text: str
    button: str
    done: str
    act: Callable[[Any], object]
    fields: Sequence[str] = ()
    applies: Callable[[Any], bool] = bool
    count: str = ""


def confirmed_action(
    description: str, **texts: Any
) -> Callable[[Callable[[Any, HttpRequest, Any], object]], Any]:
    """Turn a method that acts on one row into an action with a confirmation page of `texts`."""

    def decorate(method: Callable[[Any, HttpRequest, Any], object]) -> Any:
        @admin.action(description=description, permissions=["operate"])
        @wraps(method)
        def run_action(
            model_admin: StyledAdmin, request: HttpRequest, rows: QuerySet[Any]
        ) -> HttpResponse | None:
            act = partial(method, model_admin, request)
            name = method.__name__
            confirmation = ActionConfirmation(name, act=act, **texts)
            return model_admin.confirmed(request, rows, confirmation)

        return run_action

    return decorate


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a row's page. `more`: text and URL of a longer list; `anchor`: its HTML id."""

    title: str
    template: ClassVar[str] = ""
    more: tuple[str, str] | None = None
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table(Section):
    """A table. `empty`: the text without rows; `pages`: links to the other pages, if paginated.

    `chips`: links to the same table with a filter.
    """

    template: ClassVar[str] = "controlplane/section_rows.html"
    columns: Sequence[str] = ()
    rows: Iterable[Sequence[Any]] = ()
    empty: str = "none"
    pages: Pages | None = None
    chips: Sequence[Chip] = ()


@dataclass(frozen=True, slots=True)
class MonospaceText(Section):
    """Preformatted text in a monospace font. `command`: a command that uses it, to be copied."""

    template: ClassVar[str] = "controlplane/section_text.html"
    text: str = ""
    is_open: bool = True
    command: str = ""


@dataclass(frozen=True, slots=True)
class Prose(Section):
    """Paragraphs of text."""

    template: ClassVar[str] = "controlplane/section_prose.html"
    paragraphs: Sequence[SafeString | str] = ()
