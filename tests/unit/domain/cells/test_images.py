"""When an image that cannot be pulled holds up its tasks, and for how long."""

from datetime import UTC, datetime, timedelta

import pytest

from controlplane.domain.cells.image_backoff import (
    CELLS,
    LONGEST_HOLD,
    WITHIN,
    PullFailures,
    held_until,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def failures(*counts: int, ago: timedelta = timedelta()) -> list[PullFailures]:
    return [PullFailures(cell_id, count, NOW - ago) for cell_id, count in enumerate(counts)]


@pytest.mark.parametrize("counts", [(), (1,), (50, 50)])
def test_pull_failures_on_few_cells_hold_no_tasks(counts: tuple[int, ...]) -> None:
    assert held_until(failures(*counts), now=NOW) is None


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [
        ((1, 1, 1), 60),
        ((1,) * 30, 60),
        ((9, 1, 1), 60),
        ((2, 2, 2), 120),
        ((5, 4, 3), 240),
        ((90, 90, 90), 600),
    ],
)
def test_the_hold_doubles_with_each_round_of_failures(
    counts: tuple[int, ...], seconds: int
) -> None:
    assert len(counts) >= CELLS
    assert held_until(failures(*counts), now=NOW) == NOW + timedelta(seconds=seconds)


def test_old_failures_and_expired_holds_do_not_count() -> None:
    assert held_until(failures(9, 9, 9, ago=WITHIN), now=NOW) is None
    assert held_until(failures(1, 1, 1, ago=timedelta(seconds=60)), now=NOW) is None
    assert held_until(failures(99, 99, 99, ago=LONGEST_HOLD - timedelta(seconds=1)), now=NOW)
