"""The command palette (Ctrl+K) of unfold: pages of the sidebar, and rows that the search finds."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from controlplane.admin.sidebar import navigation
from controlplane.contract.states import TaskState
from controlplane.queries import search
from controlplane.queries.sql import Row

_SHOWN_OF_KIND = 6


class PaletteItem(NamedTuple):
    """A result, with the attributes that unfold's template renders."""

    title: str
    description: str
    link: str
    icon: str


class _Kind(NamedTuple):
    """Rows of a model: how they are found and named."""

    model: str
    icon: str
    find: Callable[..., list[Row]]
    describe: Callable[[Row], tuple[Any, str, str]]
    """Return the key, the title and the description of a row."""


_KINDS = (
    _Kind(
        "job",
        "stacks",
        search.find_jobs,
        lambda row: (
            row.id,
            f"{row.name} ({row.id})",
            f"job of {row.project}, {_state(row.state)}",
        ),
    ),
    _Kind(
        "task",
        "checklist",
        search.find_tasks,
        lambda row: (row.id, row.name, f"task {row.id}, {_state(row.state)}"),
    ),
    _Kind(
        "attempt",
        "replay",
        search.find_attempts,
        lambda row: (
            row.uid,
            str(row.uid),
            f"attempt {row.number} of {row.task}, {_state(row.state)}",
        ),
    ),
    _Kind(
        "cell",
        "dns",
        search.find_cells,
        lambda row: (row.id, row.name, f"cell of pool {row.pool}, {row.state.lower()}"),
    ),
    _Kind("pool", "hub", search.find_pools, lambda row: (row.id, row.name, "pool")),
    _Kind(
        "project", "folder_shared", search.find_projects, lambda row: (row.id, row.name, "project")
    ),
)


def show_palette(request: HttpRequest) -> HttpResponse:
    """Return results for unfold's palette.

    Unlike unfold's view, it stores no results: they would outlast the permissions of the user.
    """
    term = request.GET.get("s", "").strip()
    if not term:
        return HttpResponse()
    began = time.monotonic()
    found = [*_pages(request, term), *_rows(request, term)]
    paginator = Paginator(found, max(len(found), 1))
    context = {
        "page_obj": paginator,
        "results": paginator.page(1),
        "page_counter": 0,
        "execution_time": time.monotonic() - began,
        "command_show_history": False,
    }
    return TemplateResponse(
        request,
        "unfold/helpers/command_results.html",
        context,
        headers={"HX-Trigger": "search", "Cache-Control": "no-store"},
    )


def _pages(request: HttpRequest, term: str) -> Iterator[PaletteItem]:
    """Yield pages of the sidebar whose title contains the term."""
    for section in navigation(request):
        for item in section["items"]:
            if term.lower() in item["title"].lower():
                title, link = item["title"], item["link"]
                yield PaletteItem(title, section.get("title", "page"), link, item["icon"])


def _rows(request: HttpRequest, term: str) -> Iterator[PaletteItem]:
    """Yield rows of each kind that the user may view, and a link to the list if there are more."""
    for kind in _KINDS:
        if not request.user.has_perm(f"controlplane.view_{kind.model}"):
            continue
        found = kind.find(term, limit=_SHOWN_OF_KIND + 1)
        for row in found[:_SHOWN_OF_KIND]:
            key, title, description = kind.describe(row)
            link = reverse(f"admin:controlplane_{kind.model}_change", args=[key])
            yield PaletteItem(title, description, link, kind.icon)
        if len(found) > _SHOWN_OF_KIND:
            listed = reverse(f"admin:controlplane_{kind.model}_changelist")
            link = f"{listed}?{urlencode({'q': term})}"
            yield PaletteItem(f"More {kind.model}s", f"with {term}", link, "more_horiz")


def _state(number: int) -> str:
    return TaskState(number).name.lower()
