"""Months, and files for spreadsheets, which calculate no text of a user."""

import csv
from datetime import UTC, date, datetime, timedelta, timezone
from io import StringIO

import pytest

from controlplane.domain.usage import month_of, months_before, parse_month, write_csv


def test_month_of_an_instant_is_that_of_utc() -> None:
    berlin = timezone(timedelta(hours=2))
    assert month_of(datetime(2031, 6, 1, 1, 30, tzinfo=berlin)) == date(2031, 5, 1)
    assert month_of(datetime(2031, 5, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == date(2031, 5, 1)


NO_MONTHS = (
    *("", "2031", "2031-5", "2031-13", "2031-00", "0000-05", "2031-05-01", " 2031-05", "2031-05\n"),
    *("٢٠٣١-٠٥", "+031-05"),
)


@pytest.mark.parametrize("text", NO_MONTHS)
def test_other_texts_are_no_months(text: str) -> None:
    assert parse_month(text) is None


def test_month_is_its_first_day() -> None:
    assert parse_month("2031-05") == date(2031, 5, 1)
    assert parse_month("0001-12") == date(1, 12, 1)


@pytest.mark.parametrize(
    ("month", "count", "expected"),
    [
        (date(2031, 5, 1), 0, date(2031, 5, 1)),
        (date(2031, 5, 1), 4, date(2031, 1, 1)),
        (date(2031, 5, 1), 5, date(2030, 12, 1)),
        (date(2031, 1, 1), 24, date(2029, 1, 1)),
        (date(1, 3, 1), 24, date(1, 1, 1)),
    ],
)
def test_months_before_cross_years_and_stop_at_the_first(
    month: date, count: int, expected: date
) -> None:
    assert months_before(month, count) == expected


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_formula_in_a_name_is_a_text(text: str) -> None:
    written = write_csv(("job",), [(text,)])
    assert list(csv.reader(StringIO(written, newline=""))) == [["job"], [f"'{text}"]]


def test_names_with_separators_and_figures_are_read_back() -> None:
    row = ('a "b", c\nd', -1.5, None)
    written = write_csv(("job", "wasted", "peak"), [row])
    [head, cells] = csv.reader(StringIO(written, newline=""))
    assert (head, cells) == (["job", "wasted", "peak"], ['a "b", c\nd', "-1.5", ""])
