"""Reservations for starving tasks, so that smaller tasks do not overtake them forever."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from controlplane.domain.placement.cycle.packing import (
    MOST_NODES,
    PackingItem,
    SearchBudget,
    demand_of,
    find_packing,
)
from controlplane.domain.placement.model.interfaces import Matrix, Vector
from controlplane.domain.placement.model.snapshot import (
    CellFacts,
    EvictableAttempt,
    ReleasingCapacity,
    ShapeFacts,
)
from controlplane.domain.placement.preemption.candidates import Flags


def choose_reservation(
    shape: ShapeFacts,
    usable: Flags,
    cells: Sequence[CellFacts],
    names: Sequence[str],
    free: Matrix,
    running: Iterable[EvictableAttempt],
    leaving: Iterable[ReleasingCapacity],
    *,
    now: datetime,
) -> tuple[int, datetime | None] | None:
    """Return the cell with the earliest start of a task, and that time; None: it fits on no cell.

    Of the `usable` cells that are large enough, the one with the earliest start by the timeouts of
    its attempts is chosen; cells with unknown times come last, by least missing share; then by
    name. `free`: resources (`names`) x cells.
    """
    request = np.array([shape.resources.get(name, 0) for name in names], dtype=np.int64)
    runs: dict[int, list[EvictableAttempt]] = defaultdict(list)
    for one in running:
        runs[one.cell_id].append(one)
    gone: dict[int, np.ndarray] = {}
    for item in leaving:
        amounts = np.array([item.resources.get(name, 0) for name in names], dtype=np.int64)
        gone[item.cell_id] = gone.get(item.cell_id, np.zeros_like(amounts)) + amounts
    best: tuple[bool, float, float, str] | None = None
    found: tuple[int, datetime | None] | None = None
    for place in np.flatnonzero(usable).tolist():
        cell = cells[place]
        capacity = np.array([cell.capacity.get(name, 0) for name in names], dtype=np.int64)
        if (request > capacity).any():
            continue
        lacks = request - free[:, place] - gone.get(cell.cell_id, 0)
        lacks = np.where(request > 0, lacks, 0)
        begins_at = _begins_at(lacks, runs[cell.cell_id], names, now)
        share = float((np.maximum(lacks, 0) / np.maximum(capacity, 1)).max(initial=0.0))
        waits = 0.0 if begins_at is None else (begins_at - now).total_seconds()
        rank = (begins_at is None, waits, share, cell.name)
        if best is None or rank < best:
            best, found = rank, (cell.cell_id, begins_at)
    return found


def _begins_at(
    lacks: np.ndarray, runs: Sequence[EvictableAttempt], names: Sequence[str], now: datetime
) -> datetime | None:
    """Return when enough attempts will have ended by their timeouts; None: unknown."""
    if (lacks <= 0).all():
        return now
    ending = [(one.ends_by, one) for one in runs if one.ends_by is not None]
    for ends_by, one in sorted(ending, key=lambda pair: (pair[0], pair[1].task_id)):
        lacks = lacks - np.array([one.resources.get(name, 0) for name in names], dtype=np.int64)
        if (lacks <= 0).all():
            return max(ends_by, now)
    return None


@dataclass(frozen=True, slots=True)
class GangPart:
    """Equal members of a gang, and the cells that may take them.

    The parts together have `count` members. Another split of their sum is as good with at least
    `least` members of the group, and at most `most` of this part.
    """

    shape: ShapeFacts
    group_id: int
    count: int
    usable: Flags
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class GangReservation:
    """The earliest placement of a gang: `counts` of each part by cell.

    `begins_at`: latest end of the attempts there; None: unknown.
    """

    counts: Sequence[Vector]
    begins_at: datetime | None
    waited_for: int = 0

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Return the order: earlier start first, then fewer cells that must become empty."""
        waits = 0.0 if self.begins_at is None else self.begins_at.timestamp()
        return self.begins_at is None, waits, self.waited_for


def choose_gang_reservation(
    parts: Sequence[GangPart],
    cells: Sequence[CellFacts],
    names: Sequence[str],
    free: Matrix,
    running: Iterable[EvictableAttempt],
    leaving: Iterable[ReleasingCapacity],
    *,
    now: datetime,
) -> GangReservation | None:
    """Return the earliest placement of all members; None: they do not fit on empty cells.

    The earliest time at which enough attempts must have ended by their timeouts is chosen. If there
    is none, as few cells as possible must become empty, the least used first.
    `free`: resources (`names`) x cells.
    """
    place_of = {cell.cell_id: place for place, cell in enumerate(cells)}

    def amounts(item: EvictableAttempt | ReleasingCapacity) -> Vector:
        return np.array([item.resources.get(name, 0) for name in names], dtype=np.int64)

    free = free.copy()
    for item in leaving:
        if item.cell_id in place_of:
            free[:, place_of[item.cell_id]] += amounts(item)
    runs = [one for one in running if one.cell_id in place_of]
    items = [
        PackingItem(part.group_id, _request(part.shape, names), np.asarray(part.usable), part.most)
        for part in parts
    ]
    needs = {part.group_id: part.least for part in parts}
    demand = demand_of(items, needs, sum(part.count for part in parts))

    def pack(found: Matrix) -> list[Vector] | None:
        return find_packing(found, demand, SearchBudget(MOST_NODES))

    ending = sorted(
        ((one.ends_by, one.task_id, one) for one in runs if one.ends_by is not None),
        key=lambda item: item[:2],
    )

    def after(count: int) -> Matrix:
        later = free.copy()
        for _, _, one in ending[:count]:
            later[:, place_of[one.cell_id]] += amounts(one)
        return later

    first = _first(len(ending), lambda count: pack(after(count)) is not None)
    if first is not None:
        counts = pack(after(first))
        assert counts is not None, "the same packing was found before"
        begins_at = max(ending[first - 1][0], now) if first else now
        return GangReservation(counts, begins_at, first)
    empty = free.copy()
    for one in runs:
        empty[:, place_of[one.cell_id]] += amounts(one)
    most = np.maximum(empty.max(axis=1, initial=1), 1)[:, None]
    order = np.argsort(((empty - free) / most).max(axis=0, initial=0.0), kind="stable")

    def emptied(count: int) -> Matrix:
        later = free.copy()
        later[:, order[:count]] = empty[:, order[:count]]
        return later

    first = _first(len(cells), lambda count: pack(emptied(count)) is not None)
    if first is None:
        return None
    counts = pack(emptied(first))
    assert counts is not None, "the same packing was found before"
    return GangReservation(counts, None, first)


def _request(shape: ShapeFacts, names: Sequence[str]) -> Vector:
    return np.array([shape.resources.get(name, 0) for name in names], dtype=np.int64)


def _first(most: int, holds: Callable[[int], bool]) -> int | None:
    """Return the least number from 0 to `most` for which the monotonic `holds` is true."""
    if not holds(most):
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
