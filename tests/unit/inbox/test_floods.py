"""A cell floods if it fills several windows that follow each other, and no other does."""

from controlplane.inbox.floods import MAX_PER_WINDOW, FloodMeter

CELL, OTHER = (1, "a"), (2, "b")
MANY = MAX_PER_WINDOW + 1


def test_a_cell_that_fills_three_consecutive_windows_floods() -> None:
    meter = FloodMeter()
    found = [meter.count({CELL: MANY, OTHER: 50}, seconds=at) for at in (0, 5, 10, 15, 20)]
    assert found == [{}, {}, {}, {CELL: MANY}, {CELL: MANY}]


def test_full_window_is_not_flooding() -> None:
    meter = FloodMeter()
    found = [meter.count({CELL: MAX_PER_WINDOW}, seconds=at) for at in range(0, 60, 5)]
    assert not any(found)


def test_quiet_window_resets_the_series() -> None:
    meter = FloodMeter()
    counts = [MANY, MANY, 1, MANY, MANY]
    found = [meter.count({CELL: n}, seconds=5 * at) for at, n in enumerate(counts)]
    assert not any(found)


def test_late_window_starts_a_new_series() -> None:
    """The inbox stood still: what it finds then is a backlog of all that time."""
    meter = FloodMeter()
    found = [meter.count({CELL: MANY}, seconds=at) for at in (0, 5, 10, 20, 25, 30)]
    assert found == [{}, {}, {}, {}, {}, {CELL: MANY}]


def test_flooding_is_detected_after_the_clock_was_set_back() -> None:
    meter = FloodMeter()
    found = [meter.count({CELL: MANY}, seconds=at) for at in (4000, 0, 5, 10, 15)]
    assert found == [{}, {}, {}, {}, {CELL: MANY}]
