"""Usage: months, the limits of what the totals of usage contain, and files for spreadsheets."""

import csv
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from io import StringIO
from typing import Any

MAX_JOB_NAMES = 1_000
"""Job names of a user in a project and month that have totals of their own: names with a date or a
number in them would make a row for each job."""

MAX_CORES = 4_096
MAX_PEAK_MIB = 1 << 26
"""A cell that reports more cores than that, or 64 TiB of memory, does not measure: figures of one
attempt must not hide those of all others."""

# The first characters of a formula in a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_MONTH = re.compile("[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)


def month_of(at: datetime) -> date:
    """Return the first day of the month of an instant, in UTC."""
    return at.astimezone(UTC).date().replace(day=1)


def parse_month(text: str) -> date | None:
    """Return the first day of a month such as 2031-05; None if the text is no month."""
    if not _MONTH.fullmatch(text) or text.startswith("0000"):
        return None
    return date.fromisoformat(f"{text}-01")


def months_before(month: date, count: int) -> date:
    """Return the first day of the month `count` months before; at least the year 1."""
    place = max(12, month.year * 12 + month.month - 1 - count)
    return date(place // 12, place % 12 + 1, 1)


def write_csv(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV (RFC 4180), below a line of the columns.

    A text that a spreadsheet would calculate gets an apostrophe before it.
    """
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
