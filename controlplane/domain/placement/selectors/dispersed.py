"""Dispersed: each task goes to the cell that is least utilised after taking it (the default).

Utilisation is the cell's dominant share. Ties go to the cell that got fewer of these tasks, then by
name. All tasks of a shape are placed in one step that gives the same result as one by one.
"""

from heapq import heapify, heapreplace
from math import inf

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
    more = np.zeros_like(room)
    if not count:
        return more
    share = utilisation(offer.capacity, offer.used + (given + 1) * offer.request[:, None])
    share[room <= 0] = np.inf
    if count == 1:
        more[int(share.argmin())] = 1
        return more
    # Taking a task never makes a cell less utilised: only the `count` least ones can matter.
    if count < len(share):
        worst = np.partition(share, count - 1)[count - 1]
        least = np.flatnonzero(share <= worst)
        if _nobody_takes_two(offer, given[least], room[least], least, worst):
            more[least[np.argsort(share[least], kind="stable")[:count]]] = 1
            return more
    else:
        least = np.arange(len(share))
    least = least[room[least] > 0]
    shares = _Shares(offer, given, least)
    rooms = room[least].tolist()
    heap = [(value, 1, place) for place, value in enumerate(share[least].tolist())]
    heapify(heap)
    for _ in range(count):
        _, nth, place = heap[0]
        more[least[place]] += 1
        if nth < rooms[place]:
            heapreplace(heap, (shares.after(place, nth + 1), nth + 1, place))
        else:
            heapreplace(heap, (inf, nth, place))
    return more


def _nobody_takes_two(
    offer: Offer, given: Vector, room: Vector, cells: Vector, worst: float
) -> bool:
    """Whether all of the cells would be as utilised as the `worst` one by their second task."""
    after = offer.used[:, cells] + (given + 2) * offer.request[:, None]
    second = utilisation(offer.capacity[:, cells], after)
    return bool(((second >= worst) | (room < 2)).all())


class _Shares:
    """Utilisations of a few cells, in plain numbers: numpy is slow where there is one of each."""

    def __init__(self, offer: Offer, given: Vector, cells: Vector) -> None:
        held = offer.used[:, cells] + given[cells] * offer.request[:, None]
        self._held: list[list[int]] = held.T.tolist()
        self._capacity: list[list[int]] = offer.capacity[:, cells].T.tolist()
        self._request: list[int] = offer.request.tolist()

    def after(self, place: int, nth: int) -> float:
        """Of the cell after its `nth` task."""
        columns = zip(self._held[place], self._request, self._capacity[place], strict=True)
        shares = ((held + nth * each) / most if most > 0 else 0.0 for held, each, most in columns)
        return max(shares, default=0.0)


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
        # What a cell has none of does not count, whatever is kept there.
        above = (spare[~asked] < 0) & (offer.capacity[~asked] > 0)
        fits[above.any(axis=0)] = 0
    return np.clip(fits, 0, room).astype(np.int64)
