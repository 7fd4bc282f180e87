"""The usage page: requested and used resources of a month, ranked by waste, and pools' capacity."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import (
    NOTHING,
    bare_amount,
    core_hours,
    gib_hours,
    gpu_hours,
    instant,
    meter,
    page_link,
)
from controlplane.admin.base import Table
from controlplane.admin.lists.paging import Chip
from controlplane.domain.errors import NotFound
from controlplane.domain.scopes import split_project_name
from controlplane.domain.usage import month_of, parse_month
from controlplane.models import Job
from controlplane.queries.pages.usage import list_months, load_pool_capacities
from controlplane.queries.tenancy.access import find_project_place
from controlplane.queries.tenancy.usage import (
    OTHER_JOBS,
    UsageFilter,
    load_usage_totals,
    write_usage_csv,
)

_SHOWN = 50
_MONTHS = 12
_GROUPINGS = {
    "project": ("project",),
    "user": ("user",),
    "job": ("project", "user", "job"),
    "month": ("month",),
}
_RANKS = {"cpu": "CPU", "memory": "memory", "gpu": "GPU"}
_MAX_TEXT = 255


@dataclass(frozen=True, slots=True)
class _Selection:
    """What the address of the page selects; empty texts are no filters."""

    month: date
    by: str
    rank: str
    project: str = ""
    user: str = ""
    job: str = ""

    def address(self, **changes: str) -> str:
        """Return the query of the page with changed parameters."""
        query = {
            "month": f"{self.month:%Y-%m}",
            "by": self.by,
            "rank": self.rank,
            "project": self.project,
            "user": self.user,
            "job": self.job,
            **changes,
        }
        return f"?{urlencode({name: text for name, text in query.items() if text})}"

    def as_filter(self) -> UsageFilter:
        """Return the filter of the totals. Raise Http404 for an unknown project."""
        project_id = None
        if self.project:
            try:
                project_id = find_project_place(*split_project_name(self.project)).project_id
            except NotFound as fault:
                raise Http404(str(fault)) from None
        return UsageFilter(
            since=date.min if self.by == "month" else self.month,
            until=date.max if self.by == "month" else self.month,
            by=_GROUPINGS[self.by],
            project_id=project_id,
            user=self.user or None,
            job=self.job or None,
        )


def show_usage(request: HttpRequest) -> HttpResponse:
    """Return the page: `month`, `by`, `rank`, `project`, `user` and `job` are in its address."""
    chosen = _read(request)
    wanted, now = chosen.as_filter(), clock.now()
    found = load_usage_totals(wanted, rank=chosen.rank, limit=_SHOWN + 1)
    shown = found[:_SHOWN]
    jobs: Any = admin.site._registry[Job]
    context = {
        **admin.site.each_context(request),
        "title": "Usage",
        "subtitle": None,
        "opts": Job._meta,
        "media": jobs.media,
        "file": reverse("admin:controlplane_usage_file") + chosen.address(),
        "filters": list(_describe_filters(chosen)),
        "months": _month_chips(chosen, month_of(now)),
        "groupings": [
            Chip(f"by {name}", chosen.address(by=name), name == chosen.by) for name in _GROUPINGS
        ],
        "ranks": [
            Chip(f"{text} waste first", chosen.address(rank=name), name == chosen.rank)
            for name, text in _RANKS.items()
        ],
        "bars": list(_bars(shown, chosen)),
        "totals": Table(
            "Requested and used",
            columns=(
                chosen.by,
                "CPU requested",
                "CPU used",
                "CPU wasted",
                "memory requested",
                "memory used",
                "memory wasted",
                "highest peak",
                "GPU requested",
                "attempts",
                "not measured",
            ),
            rows=[_row(row, chosen) for row in shown],
            empty="no attempt was released in this month",
        ),
        "has_more": len(found) > _SHOWN,
        "shown": _SHOWN,
        "pools": _pools(request) if request.user.has_perm("controlplane.view_pool") else None,
    }
    return TemplateResponse(request, "controlplane/usage.html", context)


def download_usage(request: HttpRequest) -> HttpResponse:
    """Return the totals of the page as a file for spreadsheets."""
    chosen = _read(request)
    wanted = chosen.as_filter()
    content = write_usage_csv(wanted, rank=chosen.rank)
    made = HttpResponse(content, content_type="text/csv; charset=utf-8")
    name = "usage.csv" if chosen.by == "month" else wanted.file_name
    made["Content-Disposition"] = f'attachment; filename="{name}"'
    return made


def _read(request: HttpRequest) -> _Selection:
    """Return what the address selects. Raise PermissionDenied, Http404."""
    if not request.user.has_perm("controlplane.view_job"):
        raise PermissionDenied
    given = request.GET
    texts = {name: given.get(name, "") for name in ("project", "user", "job")}
    if any("\x00" in text or len(text) > _MAX_TEXT for text in texts.values()):
        raise Http404("a filter is no name")
    month = parse_month(given["month"]) if given.get("month") else month_of(clock.now())
    by, rank = given.get("by", "project"), given.get("rank", "cpu")
    if month is None or by not in _GROUPINGS or rank not in _RANKS:
        raise Http404("there is no such month, grouping or rank")
    return _Selection(month, by, rank, **texts)


def _month_chips(chosen: _Selection, present: date) -> list[Chip]:
    months = sorted({present, chosen.month, *list_months(_MONTHS)}, reverse=True)
    return [
        Chip(
            f"{month:%Y-%m}",
            chosen.address(
                month=f"{month:%Y-%m}", by=chosen.by if chosen.by != "month" else "project"
            ),
            month == chosen.month and chosen.by != "month",
        )
        for month in months
    ]


def _describe_filters(chosen: _Selection) -> Iterator[tuple[str, str]]:
    """Yield each filter in words, with the address of the page without it."""
    for name, text in (("project", chosen.project), ("user", chosen.user), ("job", chosen.job)):
        if text:
            words = f"job names that begin with {text}" if name == "job" else f"{name} {text}"
            yield words, chosen.address(**{name: ""})


def _bars(rows: Sequence[Mapping[str, Any]], chosen: _Selection) -> Iterator[dict[str, Any]]:
    """Yield bars of the request and of the used part; the largest is as wide as the card."""
    unit = "memory_mib" if chosen.rank == "memory" else "cpu"
    requested, used = f"requested_{unit}_seconds", f"used_{unit}_seconds"
    largest = max((max(row[requested], row[used]) for row in rows), default=0)
    show = gib_hours if unit == "memory_mib" else core_hours
    for row in rows[:10]:
        if largest <= 0:
            return
        yield {
            "name": _name(row, chosen),
            "requested": round(100 * row[requested] / largest, 2),
            "used": round(100 * row[used] / largest, 2),
            "text": f"{show(row[used])} of {show(row[requested])} used",
        }


def _row(row: Mapping[str, Any], chosen: _Selection) -> tuple[Any, ...]:
    return (
        _name(row, chosen),
        core_hours(row["requested_cpu_seconds"]),
        core_hours(row["used_cpu_seconds"]),
        core_hours(row["wasted_cpu_seconds"]),
        gib_hours(row["requested_memory_mib_seconds"]),
        gib_hours(row["used_memory_mib_seconds"]),
        gib_hours(row["wasted_memory_mib_seconds"]),
        bare_amount("memory_mib", round(row["memory_peak_mib"])),
        gpu_hours(row["requested_gpu_seconds"]),
        f"{row['attempts']:,}",
        f"{row['unmeasured_attempts']:,}",
    )


def _name(row: Mapping[str, Any], chosen: _Selection) -> SafeString | str:
    """Return the keys of a row, with links to its parts and, for a job name, to the jobs."""
    match chosen.by:
        case "month":
            text = row["month"]
            return _link(text, chosen.address(month=text, by="project"))
        case "project":
            return _link(row["project"], chosen.address(project=row["project"], by="job"))
        case "user":
            return _link(row["user"], chosen.address(user=row["user"], by="job"))
    owner = f"{row['user']} in {row['project']}"
    if row["job"] == OTHER_JOBS:
        return format_html("{}<br><small>{}</small>", row["job"], owner)
    address = f"{reverse('admin:controlplane_job_changelist')}?{urlencode({'q': row['job']})}"
    return format_html("{}<br><small>{}</small>", _link(row["job"], address), owner)


def _link(text: str, address: str) -> SafeString:
    return format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)


def _pools(request: HttpRequest) -> Table:
    found = load_pool_capacities(clock.now())
    names = ("cpu_millis", "memory_mib", "gpu")
    return Table(
        "Capacity of pools now",
        columns=(
            "pool",
            "CPU requested",
            "memory requested",
            "GPU requested",
            "with waiting tasks",
            "sampled",
        ),
        rows=[
            (
                page_link("pool", it.pool_id, it.name),
                *(
                    meter(name, it.requested.get(name, 0), it.capacity[name])
                    if it.capacity.get(name)
                    else NOTHING
                    for name in names
                ),
                ", ".join(
                    f"{bare_amount(name, it.wanted[name])} {title}"
                    for name, title in zip(names, ("cores", "memory", "GPU"), strict=True)
                    if it.wanted.get(name)
                )
                or NOTHING,
                instant(it.at),
            )
            for it in found
        ],
        empty="no sample of the last two minutes: convergence takes one every 15 seconds",
    )
