"""Dispersed: place each task on the least utilised cell (the default).

Utilisation is the cell's dominant share before it takes the task. Ties are broken by larger total
capacity, then by fewer of these tasks, then by name. All tasks of a shape are placed in one step
with the same result as one by one. Source: Backend.AI (DispersedSelector).

Shares are compared as quotients in double precision. Two that differ compare as equal only if both
capacities exceed 2**26 (64 TiB in MiB).
"""

from heapq import heapify, heapreplace
from math import inf

import numpy as np

from controlplane.domain.placement.model.interfaces import CellOffer, Matrix, Vector
from controlplane.domain.placement.model.shares import utilisation

# Up to this number, tasks are placed one by one; above it, all cells are first filled to a common
# level.
_FEW = 64
_BISECTIONS = 40
# Much larger than the rounding error of a share, much smaller than the share of a task.
_MARGIN = 1e-9


class DispersedSelector:
    """Selector of the least utilised cell."""

    keeps_place = False

    def select(self, offer: CellOffer, count: int) -> Vector:
        """Return counts by ascending utilisation."""
        room = np.minimum(offer.room, count)
        given = np.zeros_like(room)
        if count <= _FEW:
            return _one_by_one(offer, offer.used, given, room, count)
        given = _common_level(offer, room, count)
        used = offer.used + given * offer.request[:, None]
        return given + _one_by_one(offer, used, given, room - given, count - int(given.sum()))


def _one_by_one(offer: CellOffer, used: Matrix, given: Vector, room: Vector, count: int) -> Vector:
    """Return the cells of `count` further tasks; `used` includes the tasks that are `given`."""
    more = np.zeros_like(room)
    if not count:
        return more
    share = utilisation(offer.capacity, used)
    share[room <= 0] = np.inf
    # A task never lowers utilisation, so only the `count` least utilised cells matter.
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
    """Return whether each of `cells`, with one more task, sorts after the last one (`worst`)."""
    tasks = given[cells] + 1
    share = utilisation(
        offer.capacity[:, cells], offer.used[:, cells] + tasks * offer.request[:, None]
    )
    behind = offer.sizes[cells] < offer.sizes[cells[-1]]
    behind |= (offer.sizes[cells] == offer.sizes[cells[-1]]) & (tasks > given[cells[-1]])
    return bool(((share > worst) | ((share == worst) & behind) | (room[cells] < 2)).all())


class _Utilisations:
    """Utilisations of a few cells, without numpy, which is slow for single values."""

    def __init__(self, offer: CellOffer, cells: Vector) -> None:
        self._used: list[list[int]] = offer.used[:, cells].T.tolist()
        self._capacity: list[list[int]] = offer.capacity[:, cells].T.tolist()
        self._request: list[int] = offer.request.tolist()

    def with_tasks(self, place: int, tasks: int) -> float:
        """Return the utilisation of the cell with that number of the tasks."""
        columns = zip(self._used[place], self._request, self._capacity[place], strict=True)
        shares = ((used + tasks * each) / most if most > 0 else 0.0 for used, each, most in columns)
        return max(shares, default=0.0)


def _common_level(offer: CellOffer, room: Vector, count: int) -> Vector:
    """Return the tasks that cells take below a common utilisation, at most `count` in all.

    Tasks below that level come before any task at it, so ties do not matter.
    """
    low, high = 0.0, max(1.0, float(utilisation(offer.capacity, offer.used).max(initial=0.0)))
    requested = offer.request > 0
    if not requested.any():
        return np.zeros_like(room)
    request = offer.request[requested, None]
    for _ in range(_BISECTIONS):
        level = (low + high) / 2
        total = int(_below(offer, requested, request, room, level).sum())
        if total <= count:
            low = level
            if total == count:
                break
        else:
            high = level
    return _below(offer, requested, request, room, low - _MARGIN)


def _below(
    offer: CellOffer, requested: np.ndarray, request: Matrix, room: Vector, level: float
) -> Vector:
    """Return how many tasks each cell takes while its utilisation is below `level`."""
    spare = level * offer.capacity - offer.used
    takes = np.ceil(spare[requested] / request).min(axis=0)
    if not requested.all():
        # Resources without capacity are ignored, even if they are reserved.
        above = (spare[~requested] <= 0) & (offer.capacity[~requested] > 0)
        takes[above.any(axis=0)] = 0
    return np.clip(takes, 0, room).astype(np.int64)
