"""Where a place is kept for who waited too long, so that small tasks cannot pass him for ever."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

import numpy as np

from controlplane.domain.placement.interfaces import Matrix
from controlplane.domain.placement.occupants import Flags
from controlplane.domain.placement.snapshot import CellFacts, Leaving, Running, ShapeFacts


def choose_reservation(
    shape: ShapeFacts,
    usable: Flags,
    cells: Sequence[CellFacts],
    names: Sequence[str],
    free: Matrix,
    running: Iterable[Running],
    leaving: Iterable[Leaving],
    *,
    now: datetime,
) -> tuple[int, datetime | None] | None:
    """The cell where a task of the shape could be first, and when; None: it fits on no empty one.

    Of the `usable` cells that are large enough: the one that is known to be free for it first, by
    the timeouts of what runs there; those of which that is not known last, the one that lacks the
    least share first; then by name. `free`: resources (`names`) x cells.
    """
    request = np.array([shape.resources.get(name, 0) for name in names], dtype=np.int64)
    runs: dict[int, list[Running]] = defaultdict(list)
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
    lacks: np.ndarray, runs: Sequence[Running], names: Sequence[str], now: datetime
) -> datetime | None:
    """When what runs will have left enough, by its timeouts; None: nobody knows."""
    if (lacks <= 0).all():
        return now
    ending = [(one.ends_by, one) for one in runs if one.ends_by is not None]
    for ends_by, one in sorted(ending, key=lambda pair: (pair[0], pair[1].task_id)):
        lacks = lacks - np.array([one.resources.get(name, 0) for name in names], dtype=np.int64)
        if (lacks <= 0).all():
            return max(ends_by, now)
    return None
