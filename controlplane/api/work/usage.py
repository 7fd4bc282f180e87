"""Endpoints of usage: requested and used resources by month, project, user and job name."""

from datetime import date

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api import charges
from controlplane.api.base import ApiView
from controlplane.api.openapi import Operation, parameter
from controlplane.api.problems import BadQuery
from controlplane.api.walls import check_named_project
from controlplane.api.work.usage_schemas import UsageRow
from controlplane.domain.usage import month_of, parse_month
from controlplane.queries.tenancy.usage import (
    KEYS,
    MAX_CSV_ROWS,
    RANKS,
    UsageFilter,
    load_usage_totals,
    write_usage_csv,
)

_FILTERS = [
    parameter("month", "Month of the release in UTC, such as 2031-05; default the present one."),
    parameter("from", "First month, instead of `month`."),
    parameter("to", "Last month; default the present one."),
    parameter(
        "by",
        "What the figures are added up by: some of month, project, user and job, separated by"
        " commas; default `project`.",
    ),
    parameter("project", "`domain/name`; `name` alone is in the domain `default`."),
    parameter("user", "Name of the owner of the jobs."),
    parameter("job", "Beginning of the job name."),
    parameter("rank", "Resource by whose waste rows are ranked: cpu (default), memory or gpu."),
]


class Usage(ApiView):
    """The totals of usage in the projects that the caller may read."""

    document = UsageRow

    @Operation(id="list_usage", page=True, parameters=_FILTERS, problems=(404,))
    def list(self, request: Request) -> Response:
        """List what was requested and used, the largest waste first.

        Rows that change between two pages may be listed twice or not at all.
        """
        page = self.begin_page()
        offset = page.number or 0
        wanted, rank = self._filter(), self._rank()
        # Many totals may make few rows.
        with charges.charge_time(request):
            found = load_usage_totals(wanted, rank=rank, offset=offset, limit=page.limit + 1)
        if len(found) > page.limit:
            page.following = offset + page.limit
        return page.get_paginated_response(found[: page.limit])

    @Operation(id="read_usage_csv", answer="text/csv", parameters=_FILTERS, problems=(404,))
    def read_usage_csv(self, request: Request) -> HttpResponse:
        """Fetch the same as a file for spreadsheets: the first 20,000 rows.

        A text that a spreadsheet would calculate, since it begins with = + - or @, has an
        apostrophe before it.
        """
        wanted, rank = self._filter(), self._rank()
        charges.charge_rows(request, MAX_CSV_ROWS)
        with charges.charge_time(request):
            content = write_usage_csv(wanted, rank=rank)
        made = HttpResponse(content, content_type="text/csv; charset=utf-8")
        made["Content-Disposition"] = f'attachment; filename="{wanted.file_name}"'
        return made

    def _filter(self) -> UsageFilter:
        since, until = self._months()
        name = self.query.text("project")
        return UsageFilter(
            since=since,
            until=until,
            by=self._keys(),
            project_id=check_named_project(self.access, name).project_id if name else None,
            user=self.query.text("user"),
            job=self.query.text("job"),
            readable=self.access.readable,
        )

    def _months(self) -> tuple[date, date]:
        month, present = self._month("month"), month_of(clock.now())
        first, last = self._month("from"), self._month("to")
        if month is not None:
            if first or last:
                raise BadQuery("month", "must not be given together with from or to")
            return month, month
        last = last or present
        return first or last, last

    def _month(self, name: str) -> date | None:
        text = self.query.text(name)
        month = parse_month(text) if text else None
        if text and month is None:
            raise BadQuery(name, "must be a month such as 2031-05")
        return month

    def _keys(self) -> tuple[str, ...]:
        words = tuple(word for word in (self.query.text("by") or "project").split(",") if word)
        if not words or not set(words) <= set(KEYS):
            raise BadQuery("by", f"must be some of {', '.join(KEYS)}")
        return words

    def _rank(self) -> str:
        return self.query.choice("rank", RANKS) or "cpu"
