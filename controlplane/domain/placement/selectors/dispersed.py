"""Dispersed: each task goes to the cell that is least utilised after taking it (the default).

Utilisation is the cell's dominant share. Ties go to the cell that got fewer in this pass, then by
name, so that a plan is reproducible. All tasks of a shape are placed in one vectorised step that
gives the same result as placing them one by one.
"""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.int64]
Vector = NDArray[np.int64]

# Above this many (cell, n-th task) pairs the common level is found first, and only the rest is
# sorted.
_SORT_LIMIT = 100_000
_BISECTIONS = 48


def select(capacity: Matrix, used: Matrix, request: Vector, room: Vector, count: int) -> Vector:
    """How many of `count` tasks each cell takes.

    `capacity`, `used`: cells x resources; `request`: per task; `room`: at most so many fit a cell.
    Cells are in order of name. The result sums to min(count, sum(room)).
    """
    room = np.minimum(room, count)
    count = int(min(count, room.sum()))
    given = np.zeros_like(room)
    if count == 0:
        return given
    if int(room.sum()) > _SORT_LIMIT:
        given = _common_level(capacity, used, request, room, count)
    left = count - int(given.sum())
    return given + _one_by_one(capacity, used, request, given, np.minimum(room - given, left), left)


def _one_by_one(
    capacity: Matrix, used: Matrix, request: Vector, given: Vector, room: Vector, count: int
) -> Vector:
    cells = np.repeat(np.arange(len(room)), room)
    starts = np.repeat(np.cumsum(room) - room, room)
    nth = np.arange(len(cells)) - starts + given[cells] + 1
    share = _utilisation(capacity[cells], used[cells] + nth[:, None] * request)
    first = np.lexsort((cells, nth, share))[:count]
    return np.bincount(cells[first], minlength=len(room)).astype(np.int64)


def _common_level(
    capacity: Matrix, used: Matrix, request: Vector, room: Vector, count: int
) -> Vector:
    """The most that all cells take at or below one utilisation, without passing `count`."""
    low, high = 0.0, 1.0
    best = np.zeros_like(room)
    for _ in range(_BISECTIONS):
        level = (low + high) / 2
        given = _below(capacity, used, request, room, level)
        if int(given.sum()) <= count:
            low, best = level, given
        else:
            high = level
    return best


def _below(capacity: Matrix, used: Matrix, request: Vector, room: Vector, level: float) -> Vector:
    asked = request > 0
    spare = level * capacity - used
    if not asked.any():
        return np.zeros_like(room)
    fits = np.floor(spare[:, asked] / request[asked]).min(axis=1)
    fits[(spare[:, ~asked] < 0).any(axis=1)] = 0
    return np.clip(fits, 0, room).astype(np.int64)


def _utilisation(capacity: Matrix, used: Matrix) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(capacity > 0, used / np.maximum(capacity, 1), 0.0)
    top: NDArray[np.float64] = shares.max(axis=1, initial=0.0)
    return top
