"""The open-loop generator: what is due when, the growth of a backlog, rates, and log lines."""

import pytest

from benchmarks.generator import Load, find_growth, list_seconds
from benchmarks.recovery import NEVER, find_recovery
from benchmarks.snapshots import steady_rate, sum_durations


def test_load_of_800_a_second_for_5_minutes_is_240_000_tasks() -> None:
    load = Load(800, 300, jobs_each=20, tasks_each=1)
    assert load.interval == pytest.approx(0.025)
    assert load.tasks == 240_000


def test_load_of_5_000_a_second_for_3_minutes_is_900_000_tasks() -> None:
    load = Load(5_000, 180, jobs_each=1, tasks_each=250)
    assert load.interval == pytest.approx(0.05)
    assert load.tasks == 900_000


def test_due_tasks_follow_from_the_time_alone() -> None:
    load = Load(100, 1, jobs_each=2, tasks_each=5)
    assert [load.due_tasks(at) for at in (-1, 0, 0.05, 0.1001, 0.95, 7)] == [
        0,
        10,
        10,
        20,
        100,
        100,
    ]


def test_growth_of_a_backlog_that_grows_by_ten_tasks_a_second_is_ten() -> None:
    backlog = [(float(second), 100 + 10 * second) for second in range(1, 61)]
    assert find_growth(backlog) == pytest.approx(10)


def test_growth_of_a_bounded_backlog_is_about_zero() -> None:
    backlog = [(float(second), 100 + second % 3) for second in range(1, 61)]
    assert abs(find_growth(backlog)) < 0.1


def test_growth_ignores_the_begin() -> None:
    """A backlog that fills in the first second and stays as it is does not grow."""
    backlog = [(1.0, 0), *((float(second), 500) for second in range(2, 21))]
    assert find_growth(backlog) == pytest.approx(0)


def test_seconds_without_an_end_are_listed() -> None:
    assert list_seconds({3: 7, 1: 5}) == [(0, 0), (1, 5), (2, 0), (3, 7)]
    assert list_seconds({}) == []


def test_rate_counts_seconds_without_an_end() -> None:
    """Only seconds 2 to 7 of ten count; half of them are empty."""
    ended = [(0, 900), (2, 100), (4, 100), (6, 100), (9, 900)]
    assert steady_rate(ended, 10) == 50


@pytest.mark.parametrize(
    ("ended", "seconds"),
    [
        ({20: 1_000, 21: 1_000}, 0),
        ({20: 0, 21: 940, 22: 959, 23: 1_000, 24: 1_000}, 2),
        ({20: 1_000, 21: 0, 22: 1_900, 23: 1_900}, 2),
        ({20: 949, 21: 950, 22: 949}, NEVER),
        ({31: 1_000, 32: 1_000}, NEVER),
    ],
)
def test_rate_is_back_when_95_percent_end_in_two_seconds(
    ended: dict[int, int], seconds: float
) -> None:
    """The part is back in second 20, and the next one fails ten seconds later."""
    assert find_recovery(ended, back=20.4, rate=1_000, most=10) == seconds


def test_durations_are_summed_by_statement_with_its_continuation() -> None:
    log = (
        "cellrun-inbox|LOG:  duration: 1.500 ms  statement: SELECT 1\n"
        "cellrun-inbox|LOG:  duration: 2.000 ms  execute <unnamed>: UPDATE a\n"
        "\t  SET b = $1\n"
        "cellrun-web|DETAIL:  parameters: $1 = '7'\n"
        "\tignored\n"
        "cellrun-placement|LOG:  duration: 4.000 ms  execute _pg3_1: UPDATE a SET b = $1\n"
        "psql|LOG:  duration: 9.000 ms  statement: SELECT 1\n"
    )
    assert sum_durations(log) == {"SELECT 1": [1.5, 1], "UPDATE a SET b = $1": [6.0, 2]}
