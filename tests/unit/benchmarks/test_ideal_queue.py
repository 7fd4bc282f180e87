"""Schedules that are calculated by hand."""

import pytest

from benchmarks.ideal_queue import Kind, ideal_seconds

QUOTA = 20


@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [
        # Two at a time: 0 to 1, 1 to 2.
        ([Kind("batch", 3, 10, 1.0, 0.0)], 2.0),
        # Nothing runs between 1 and 3.
        ([Kind("batch", 2, 20, 1.0, 3.0)], 4.0),
        # The large ones at 0 to 1 and 4 to 5; the other from 1, evicted at 4, from 5 to 15.
        ([Kind("batch", 1, 20, 10.0, 0.0), Kind("production", 2, 20, 1.0, 4.0)], 15.0),
        # Production 0 to 1 and 2 to 3; interactive 0 to 3; batch from 1, evicted at 2, 3 to 6.
        (
            [
                Kind("batch", 1, 10, 3.0, 0.0),
                Kind("interactive", 1, 10, 3.0, 0.0),
                Kind("production", 2, 10, 1.0, 2.0),
            ],
            6.0,
        ),
        # An interactive task does not evict one of its own band: 0 to 2, 2 to 4.
        ([Kind("interactive", 2, 20, 2.0, 1.0)], 4.0),
        # The second arrives at 1 and runs beside the first.
        ([Kind("batch", 2, 10, 2.0, 1.0)], 3.0),
    ],
)
def test_last_task_ends_as_calculated(kinds: list[Kind], seconds: float) -> None:
    assert ideal_seconds(kinds, QUOTA) == seconds


def test_newest_of_the_lowest_priority_is_evicted() -> None:
    # Production 0 to 1 and 1.5 to 2.5; batch 0 to 2, and the other from 1, evicted at 1.5, 2 to 4.
    # With the first evicted instead, it would run from 2.5 to 4.5.
    kinds = [Kind("batch", 2, 10, 2.0, 1.0), Kind("production", 2, 10, 1.0, 1.5)]
    assert ideal_seconds(kinds, QUOTA) == 4.0
