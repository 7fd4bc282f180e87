"""Paginate with a bounded count: exact up to a limit, above it the planner's estimate."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.contrib.postgres.expressions import ArraySubquery
from django.core.paginator import Page, Paginator
from django.db import connection
from django.db.models import BooleanField, F, Func, QuerySet
from django.db.models.sql.where import WhereNode
from django.utils.functional import cached_property

# Counting this many rows takes a few milliseconds with their jobs, and 80 pages are enough.
EXACT_UP_TO = 2_000

# A table this many times larger is not counted: its estimate may be late by some deletions.
_SURELY_MORE = 10


def is_among(keys: QuerySet[Any]) -> Func:
    """Return the condition that the primary key of a row is among these keys.

    PostgreSQL reads the keys once and then each row by its key. With `pk__in`, it may read all rows
    in the order of a list, and compare each with the keys.
    """
    return Func(
        F("pk"),
        ArraySubquery(keys),
        template="%(expressions)s)",
        arg_joiner=" = ANY(",
        output_field=BooleanField(),
    )


class BoundedPaginator(Paginator):
    """Django's paginator without `SELECT count(*)` over the whole table."""

    is_whole = False
    """Whether no filter is active, so that the size of the table estimates the count of rows."""

    is_costly = False
    """Whether a filter costs more than reading all keys.

    The count and the pages of a longer list then share one query.
    """

    @cached_property
    def _keys(self) -> list[Any]:
        rows: Any = self.object_list
        return list(rows.values_list("pk", flat=True)[:EXACT_UP_TO])

    @cached_property
    def count(self) -> int:
        """Return the number of rows; above the limit, the limit, or an estimate of the table."""
        rows: Any = self.object_list
        if not isinstance(rows, QuerySet):
            return len(rows)
        if self.is_costly:
            return len(self._keys)
        estimate = _estimate(rows.model._meta.db_table) if self.is_whole else 0
        if estimate > _SURELY_MORE * EXACT_UP_TO:
            return estimate
        return self._count(estimate)

    def _count(self, estimate: int) -> int:
        rows: Any = self.object_list
        # A scan of the table would read it whole if most rows are hidden.
        ordered = rows.order_by("-pk") if self.is_whole else rows.order_by()
        counted: int = ordered[:EXACT_UP_TO].count()
        return counted if counted < EXACT_UP_TO else max(counted, estimate)

    def page(self, number: Any) -> Page:
        """Return a page by its keys, of an index or of the count, then its rows with their joins.

        A high offset then skips index entries, not joined rows (in one query, page 39,000 of a
        million attempts took 12 s).
        """
        rows: Any = self.object_list
        number = self.validate_number(number)
        if not isinstance(rows, QuerySet):
            return super().page(number)
        first = (number - 1) * self.per_page
        end = first + self.per_page
        keys = (
            self._keys[first:end]
            if self.is_costly
            else list(rows.values_list("pk", flat=True)[first:end])
        )
        if len(keys) < self.per_page and end < self.count:
            # Most rows are hidden, or were deleted since the estimate.
            self.count = self._count(0)
        shown = rows.all()
        shown.query.where = WhereNode()  # the keys fulfil the filters, some of which cost 30 ms
        return Page(shown.filter(pk__in=keys), number, self)


@dataclass(frozen=True, slots=True)
class Pages:
    """Links to the other pages of a section.

    `name`: the anchor of the section, and the query parameter of its page number. `filters`: the
    other query parameters of the section.
    """

    page: Page
    name: str
    filters: Mapping[str, str] = field(default_factory=dict)

    @property
    def extent(self) -> str:
        """Return the range of rows on this page, and the total."""
        page = self.page
        return f"{page.start_index()} to {page.end_index()} of {page.paginator.count}"

    @property
    def links(self) -> Iterator[tuple[str, str]]:
        """Yield text and URL of each page; the current page and an ellipsis have no URL."""
        page = self.page
        if page.has_previous():
            yield "previous", self._address(page.previous_page_number())
        for number in page.paginator.get_elided_page_range(page.number, on_each_side=2, on_ends=1):
            has_address = isinstance(number, int) and number != page.number
            yield str(number), self._address(number) if has_address else ""
        if page.has_next():
            yield "next", self._address(page.next_page_number())

    def _address(self, number: int | str) -> str:
        return f"?{urlencode({**self.filters, self.name: number})}#{self.name}"


@dataclass(frozen=True, slots=True)
class Chip:
    """A link to the same rows with a filter. `colour`: of the state that it selects, if any."""

    text: str
    address: str
    is_selected: bool
    colour: str = ""


def _estimate(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass", [table])
        return int(cursor.fetchone()[0])
