"""Dispersed: each task goes to the cell that is least utilised after taking it (the default).

Utilisation is the cell's dominant share. Ties go to the cell that got fewer of these tasks, then by
name. All tasks of a shape are placed in one step that gives the same result as one by one.
"""

from heapq import heapify, heapreplace

import numpy as np

from controlplane.domain.placement.interfaces import Matrix, Offer, Vector
from controlplane.domain.placement.shares import utilisation

# Up to so many tasks the next cell is looked up one by one; above, all cells are filled to one
# common level first, and only the rest one by one.
_FEW = 64
_BISECTIONS = 40


class Dispersed:
    """Spreads the load evenly."""

    keeps_place = False

    def select(self, offer: Offer, count: int) -> Vector:
        """Least utilised first."""
        room = np.minimum(offer.room, count)
        given = np.zeros_like(room)
        if count > _FEW:
            given = _common_level(offer, room, count)
            count -= int(given.sum())
        return given + _one_by_one(offer, given, room - given, count)


def _one_by_one(offer: Offer, given: Vector, room: Vector, count: int) -> Vector:
    after = offer.used + (given + 1) * offer.request[:, None]
    share = utilisation(offer.capacity, after)
    share[room <= 0] = np.inf
    more = np.zeros_like(room)
    if not count:
        return more
    if count == 1:
        more[int(share.argmin())] = 1
        return more
    # Taking a task never makes a cell less utilised: only the `count` least ones can matter.
    if count < len(share):
        worst = np.partition(share, count - 1)[count - 1]
        least = np.flatnonzero(share <= worst)
    else:
        least = np.arange(len(share))
    heap = [(share[cell], 1, cell) for cell in least.tolist() if room[cell] > 0]
    heapify(heap)
    for _ in range(count):
        _, nth, cell = heap[0]
        more[cell] += 1
        if nth < room[cell]:
            heapreplace(heap, (_share(offer, given, cell, nth + 1), nth + 1, cell))
        else:
            heapreplace(heap, (np.inf, nth, cell))
    return more


def _share(offer: Offer, given: Vector, cell: int, nth: int) -> float:
    after = offer.used[:, cell] + (given[cell] + nth) * offer.request
    return float(utilisation(offer.capacity[:, cell, None], after[:, None])[0])


def _common_level(offer: Offer, room: Vector, count: int) -> Vector:
    """The most that all cells take at or below one utilisation, without passing `count`."""
    low, high = 0.0, 1.0
    best = np.zeros_like(room)
    asked = offer.request > 0
    if not asked.any():
        return best
    request = offer.request[asked, None]
    for _ in range(_BISECTIONS):
        level = (low + high) / 2
        given = _below(offer, asked, request, room, level)
        total = int(given.sum())
        if total <= count:
            low, best = level, given
            if total == count:
                break
        else:
            high = level
    return best


def _below(offer: Offer, asked: np.ndarray, request: Matrix, room: Vector, level: float) -> Vector:
    spare = level * offer.capacity - offer.used
    fits = np.floor(spare[asked] / request).min(axis=0)
    if not asked.all():
        fits[(spare[~asked] < 0).any(axis=0)] = 0
    return np.clip(fits, 0, room).astype(np.int64)
