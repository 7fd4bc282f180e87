"""Dispersed: each task goes to the cell that is least utilised just now (the default).

Utilisation is the cell's dominant share, before it takes the task. Of cells that are equally
utilised the one with the larger total capacity comes first, then the one that got fewer of these
tasks, then order is by name. All tasks of a shape are placed in one step that gives the same
result as one by one. Source: Backend.AI (DispersedSelector).

Shares are compared as quotients in double precision. Two that differ compare as equal only if both
capacities exceed 2**26 (64 TiB in MiB).
"""

from heapq import heapify, heapreplace
from math import inf

import numpy as np

from controlplane.domain.placement.model.interfaces import CellOffer, Matrix, Vector
from controlplane.domain.placement.model.shares import utilisation

# Up to so many tasks the next cell is looked up one by one; above, all cells are filled to one
# common level first, and only the rest one by one.
_FEW = 64
_BISECTIONS = 40
# Far more than the rounding of a share, far less than what a task adds to one.
_MARGIN = 1e-9


class DispersedSelector:
    """Spreads the load evenly."""

    keeps_place = False

    def select(self, offer: CellOffer, count: int) -> Vector:
        """Least utilised first."""
        room = np.minimum(offer.room, count)
        given = np.zeros_like(room)
        if count > _FEW:
            given = _common_level(offer, room, count)
            count -= int(given.sum())
        return given + _one_by_one(offer, given, room - given, count)


def _one_by_one(offer: CellOffer, given: Vector, room: Vector, count: int) -> Vector:
    more = np.zeros_like(room)
    if not count:
        return more
    share = utilisation(offer.capacity, offer.used + given * offer.request[:, None])
    share[room <= 0] = np.inf
    # Taking a task never makes a cell less utilised: only the `count` least ones can matter.
    if count < len(share):
        worst = share.min() if count == 1 else np.partition(share, count - 1)[count - 1]
        least = np.flatnonzero(share <= worst)
        if len(least) > 1:
            least = least[np.lexsort((given[least], -offer.sizes[least], share[least]))[:count]]
        if count == 1 or _has_one_each(offer, given, room, least, worst):
            more[least] = 1
            return more
    least = np.flatnonzero(room > 0)
    shares = _Utilisations(offer, least)
    columns = (share[least], -offer.sizes[least], given[least], np.arange(len(least)))
    heap = list(zip(*(column.tolist() for column in columns), strict=True))
    heapify(heap)
    most = (room + given)[least].tolist()
    for _ in range(count):
        _, size, had, place = heap[0]
        more[least[place]] += 1
        has = had + 1
        after = shares.with_tasks(place, has) if has < most[place] else inf
        heapreplace(heap, (after, size, has, place))
    return more


def _has_one_each(
    offer: CellOffer, given: Vector, room: Vector, cells: Vector, worst: float
) -> bool:
    """Return whether, with one task more, all of `cells` come after the last of them, which is
    `worst`.
    """
    tasks = given[cells] + 1
    share = utilisation(
        offer.capacity[:, cells], offer.used[:, cells] + tasks * offer.request[:, None]
    )
    behind = offer.sizes[cells] < offer.sizes[cells[-1]]
    behind |= (offer.sizes[cells] == offer.sizes[cells[-1]]) & (tasks > given[cells[-1]])
    return bool(((share > worst) | ((share == worst) & behind) | (room[cells] < 2)).all())


class _Utilisations:
    """Utilisations of a few cells, in plain numbers: numpy is slow where there is one of each."""

    def __init__(self, offer: CellOffer, cells: Vector) -> None:
        self._used: list[list[int]] = offer.used[:, cells].T.tolist()
        self._capacity: list[list[int]] = offer.capacity[:, cells].T.tolist()
        self._request: list[int] = offer.request.tolist()

    def with_tasks(self, place: int, tasks: int) -> float:
        """Of the cell once it has so many of the tasks."""
        columns = zip(self._used[place], self._request, self._capacity[place], strict=True)
        shares = ((used + tasks * each) / most if most > 0 else 0.0 for used, each, most in columns)
        return max(shares, default=0.0)


def _common_level(offer: CellOffer, room: Vector, count: int) -> Vector:
    """Return the tasks that all cells take below one utilisation, `count` at most in all.

    Each of them goes before any that a cell takes at that level, whatever the ties there.
    """
    low, high = 0.0, max(1.0, float(utilisation(offer.capacity, offer.used).max(initial=0.0)))
    asked = offer.request > 0
    if not asked.any():
        return np.zeros_like(room)
    request = offer.request[asked, None]
    for _ in range(_BISECTIONS):
        level = (low + high) / 2
        total = int(_below(offer, asked, request, room, level).sum())
        if total <= count:
            low = level
            if total == count:
                break
        else:
            high = level
    return _below(offer, asked, request, room, low - _MARGIN)


def _below(
    offer: CellOffer, asked: np.ndarray, request: Matrix, room: Vector, level: float
) -> Vector:
    """Return how many tasks each cell takes while it is utilised less than `level`."""
    spare = level * offer.capacity - offer.used
    takes = np.ceil(spare[asked] / request).min(axis=0)
    if not asked.all():
        # What a cell has none of does not count, whatever is kept there.
        above = (spare[~asked] <= 0) & (offer.capacity[~asked] > 0)
        takes[above.any(axis=0)] = 0
    return np.clip(takes, 0, room).astype(np.int64)
