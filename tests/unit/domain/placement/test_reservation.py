"""Where a place is reserved: the cell that is known to be free first, of those large enough."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from controlplane.domain.placement.model.snapshot import (
    EvictableAttempt,
    ReleasingCapacity,
    ShapeFacts,
)
from controlplane.domain.placement.preemption.reservation import choose_reservation
from controlplane.domain.state.states import Band
from tests.harness.domain.facts import NOW
from tests.unit.domain.placement.pools import cell

NAMES = ["cpu_millis", "memory_mib"]
CELLS = [cell(0), cell(1), cell(2, cpu=16_000)]


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def runs(task_id: int, cell_id: int, cpu: int, seconds: float | None = None) -> EvictableAttempt:
    """An attempt of `cpu` thousandths that ends in so many seconds; None: unknown."""
    ends_by = None if seconds is None else after(seconds)
    resources = {"cpu_millis": cpu}
    return EvictableAttempt(
        task_id, 1, 1, cell_id, Band.BATCH, resources, 1, 1, 1, NOW, 10.0, ends_by=ends_by
    )


def reserve(
    cpu: int,
    running: Sequence[EvictableAttempt],
    *,
    usable: Sequence[bool] = (True, True, True),
    leaving: Sequence[ReleasingCapacity] = (),
    kept_memory: int = 0,
) -> tuple[int, datetime | None] | None:
    """For a task that requests cpu alone; what is not held of the cells is free."""
    free = np.array([[one.capacity[name] for one in CELLS] for name in NAMES])
    held = [(item.cell_id, item.resources["cpu_millis"]) for item in running]
    for cell_id, amount in held + [
        (gone.cell_id, gone.resources["cpu_millis"]) for gone in leaving
    ]:
        free[0, cell_id] -= amount
    free[1] -= kept_memory
    shape = ShapeFacts(1, Band.BATCH, 1, 1, 1, 1, {"cpu_millis": cpu}, "container")
    return choose_reservation(
        shape, np.array(usable), CELLS, NAMES, free, running, leaving, now=NOW
    )


def test_cell_that_is_free_first_is_reserved() -> None:
    running = [runs(1, 0, 8000, 90), runs(2, 1, 8000, 60), runs(3, 2, 16_000, 120)]
    assert reserve(4000, running) == (1, after(60))


def test_reservation_begins_once_enough_capacity_is_free() -> None:
    running = [runs(1, 0, 4000, 90), runs(2, 0, 4000, 30), runs(3, 1, 8000, 80)]
    usable = (True, True, False)
    assert reserve(4000, running, usable=usable) == (0, after(30))
    assert reserve(8000, running, usable=usable) == (1, after(80))


def test_attempts_without_a_known_end_come_last() -> None:
    running = [runs(1, 0, 8000), runs(2, 1, 6000), runs(3, 2, 16_000, 3600)]
    assert reserve(4000, running) == (2, after(3600))
    assert reserve(4000, running[:2], usable=(True, True, False)) == (1, None)


def test_ties_are_broken_by_cell_name() -> None:
    running = [runs(1, 0, 8000), runs(2, 1, 8000)]
    assert reserve(4000, running, usable=(True, True, False)) == (0, None)


def test_cell_too_small_even_when_empty_is_not_reserved() -> None:
    running = [runs(1, 2, 16_000)]
    assert reserve(9000, running) == (2, None)
    assert reserve(9000, running, usable=(True, True, False)) is None
    assert reserve(17_000, running) is None


def test_overdue_attempt_counts_as_ending_now() -> None:
    running = [runs(1, 0, 8000, -60)]
    assert reserve(4000, running, usable=(True, False, False)) == (0, NOW)


def test_releasing_capacity_counts_as_free() -> None:
    leaving = [ReleasingCapacity(1, {"cpu_millis": 8000})]
    assert reserve(4000, [runs(1, 0, 8000, 5)], usable=(True, True, False), leaving=leaving) == (
        1,
        NOW,
    )


def test_resources_that_the_task_does_not_need_are_ignored() -> None:
    """Memory that is kept for others twice over does not delay a task that requests none."""
    running = [runs(1, 0, 8000, 30)]
    found = reserve(4000, running, usable=(True, False, False), kept_memory=20_000)
    assert found == (0, after(30))
