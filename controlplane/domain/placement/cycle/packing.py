"""Packing: find cells for tasks that must all be placed at once.

Greedy packings come first: the most constrained and largest tasks first, into cells by name or into
the cell that they fill best (first-fit and best-fit decreasing). If none succeeds, a depth-first
search over counts of tasks by cell follows. It visits a bounded number of nodes, so it may miss a
packing of a large instance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.domain.placement.model.capacity_matrix import Mask
from controlplane.domain.placement.model.interfaces import Matrix, Vector

# A node takes about 10 µs. Eight tasks on four cells need far fewer in practice.
MOST_NODES = 4_000
# Larger instances, in items times cells, use greedy packings only: the search would spend all nodes
# on variations of the last choices.
_MOST_CHOICES = 256


@dataclass(frozen=True, slots=True)
class PackingItem:
    """At most `most` equal tasks of one group, each with `request`, on the `usable` cells."""

    group: int
    request: Vector
    usable: Mask
    most: int


@dataclass(slots=True)
class SearchBudget:
    """The nodes that searches may visit, shared by all searches of a pass."""

    nodes: int


@dataclass(frozen=True, slots=True)
class GangDemand:
    """Tasks to place at once: `needs[g]` of each group g, and `total` of all groups."""

    items: Sequence[PackingItem]
    needs: Sequence[int]
    total: int

    @property
    def extra(self) -> int:
        """Return the number of tasks beyond the groups' needs."""
        return max(self.total - sum(self.needs), 0)


def demand_of(items: Sequence[PackingItem], needs: Mapping[int, int], total: int) -> GangDemand:
    """Return the demand of a gang. The groups of `items` and `needs` are ids."""
    position = {group: place for place, group in enumerate(needs)}
    numbered = [replace(item, group=position[item.group]) for item in items]
    return GangDemand(numbered, list(needs.values()), total)


def find_packing(free: Matrix, demand: GangDemand, budget: SearchBudget) -> list[Vector] | None:
    """Return, for each item, how many of its tasks each cell takes; None if no packing is found.

    `free`: resources x cells; amounts below zero count as none.
    """
    free = np.maximum(free, 0)
    if not _may_fit(free, demand):
        return None
    for order in _orders(free, demand.items):
        for best_fit in (False, True):
            found = _pack_greedily(free, demand, order, best_fit=best_fit)
            if found is not None:
                return found
    if len(demand.items) * free.shape[1] > _MOST_CHOICES:
        return None
    return _PackingSearch(free, demand, budget).run()


def rooms(free: Matrix, item: PackingItem) -> Vector:
    """Return how many tasks of `item` alone each cell could take."""
    requested = item.request > 0
    if not requested.any():
        return np.where(item.usable, item.most, 0)
    fits = (free[requested] // item.request[requested, None]).min(axis=0)
    return np.where(item.usable, np.clip(fits, 0, item.most), 0)


def order_of(free: Matrix, items: Sequence[PackingItem]) -> list[int]:
    """Return the positions of `items`, the most constrained first, then the largest.

    An item is the more constrained the fewer cells have room for one of its tasks.
    """
    places = [int((rooms(free, item) > 0).sum()) for item in items]
    sizes = _sizes(free, items)
    return sorted(range(len(items)), key=lambda n: (places[n], -sizes[n], n))


def _orders(free: Matrix, items: Sequence[PackingItem]) -> Iterator[list[int]]:
    constrained = order_of(free, items)
    yield constrained
    sizes = _sizes(free, items)
    largest = sorted(range(len(items)), key=lambda n: (-sizes[n], n))
    if largest != constrained:
        yield largest


def _sizes(free: Matrix, items: Sequence[PackingItem]) -> list[float]:
    """Return the share of the largest free amount that a task of each item requests."""
    most = np.maximum(free.max(axis=1, initial=1), 1)
    return [float((item.request / most).max(initial=0.0)) for item in items]


def _may_fit(free: Matrix, demand: GangDemand) -> bool:
    """Return whether each group alone, and the sum of all groups, could fit."""
    alone = [min(int(rooms(free, item).sum()), item.most) for item in demand.items]
    possible = [0] * len(demand.needs)
    for item, count in zip(demand.items, alone, strict=True):
        possible[item.group] += count
    enough = all(have >= need for have, need in zip(possible, demand.needs, strict=True))
    if not enough or sum(possible) < demand.total:
        return False
    least = np.zeros(free.shape[0], dtype=np.int64)
    for group, need in enumerate(demand.needs):
        requests = [item.request for item in demand.items if item.group == group]
        if requests and need:
            least += np.min(requests, axis=0) * need
    return bool((least <= free.sum(axis=1)).all())


def _pack_greedily(
    free: Matrix, demand: GangDemand, order: Sequence[int], *, best_fit: bool
) -> list[Vector] | None:
    free = free.copy()
    found = [np.zeros(free.shape[1], dtype=np.int64) for _ in demand.items]
    left = [item.most for item in demand.items]

    def put(at: int, count: int) -> int:
        item = demand.items[at]
        given = _fill(free, item, rooms(free, item), min(count, left[at]), best_fit=best_fit)
        placed = int(given.sum())
        found[at] += given
        left[at] -= placed
        np.subtract(free, item.request[:, None] * given, out=free)
        return placed

    needs = list(demand.needs)
    for at in order:
        group = demand.items[at].group
        needs[group] -= put(at, needs[group])
    if any(needs):
        return None
    extra = demand.extra
    for at in reversed(order):  # the least constrained and smallest first
        extra -= put(at, extra)
    return None if extra else found


def _fill(free: Matrix, item: PackingItem, room: Vector, count: int, *, best_fit: bool) -> Vector:
    """Return up to `count` tasks by cell: cells are filled one after another."""
    if best_fit:
        most = np.maximum(free.max(axis=1, initial=1), 1)[:, None]
        order = np.argsort((free / most).sum(axis=0), kind="stable")
        room = room[order]
    before = np.cumsum(room) - room
    filled = np.clip(count - before, 0, room)
    if not best_fit:
        return np.asarray(filled)
    given = np.zeros_like(filled)
    given[order] = filled
    return given


_Amounts = tuple[int, ...]


@dataclass(slots=True)
class _PackingSearch:
    """Depth-first search: item by item and cell by cell, the largest counts first."""

    free: Matrix
    demand: GangDemand
    budget: SearchBudget
    _order: list[int] = field(default_factory=list)
    _failed: set[object] = field(default_factory=set)
    _counts: list[list[int]] = field(default_factory=list)
    _requests: list[_Amounts] = field(default_factory=list)
    _classes: list[int] = field(default_factory=list)

    def run(self) -> list[Vector] | None:
        items = self.demand.items
        self._order = order_of(self.free, items)
        self._requests = [tuple(item.request.tolist()) for item in items]
        self._counts = [[0] * self.free.shape[1] for _ in items]
        signatures = [tuple(bool(item.usable[n]) for item in items) for n in self._cells()]
        known: dict[tuple[bool, ...], int] = {}
        self._classes = [known.setdefault(signature, len(known)) for signature in signatures]
        free = [tuple(self.free[:, n].tolist()) for n in self._cells()]
        if not self._next_item(0, free, list(self.demand.needs), self.demand.extra):
            return None
        return [np.array(counts, dtype=np.int64) for counts in self._counts]

    def _cells(self) -> range:
        return range(self.free.shape[1])

    def _next_item(self, step: int, free: list[_Amounts], needs: list[int], extra: int) -> bool:
        """Place the items from `step` on; return whether all were placed."""
        if not extra and not any(needs):
            for at in self._order[step:]:
                self._counts[at] = [0] * len(free)
            return True
        if step == len(self._order) or not self._is_enough_left(step, free, needs, extra):
            return False
        # Cells that the same items may use are interchangeable: only their free amounts count.
        key = (step, tuple(sorted(zip(self._classes, free, strict=True))), tuple(needs), extra)
        if key in self._failed:
            return False
        at = self._order[step]
        item = self.demand.items[at]
        most = min(item.most, needs[item.group] + extra)
        others = sum(
            self.demand.items[n].most
            for n in self._order[step + 1 :]
            if self.demand.items[n].group == item.group
        )
        least = max(needs[item.group] - others, 0)
        for count in range(most, least - 1, -1):
            own = min(count, needs[item.group])
            rest = list(needs)
            rest[item.group] -= own
            if self._next_cell(step, 0, count, free, rest, extra - (count - own)):
                return True
            if self.budget.nodes <= 0:
                return False
        self._failed.add(key)
        return False

    def _next_cell(
        self, step: int, cell: int, left: int, free: list[_Amounts], needs: list[int], extra: int
    ) -> bool:
        """Place `left` tasks of the item of `step` on cells from `cell` on."""
        self.budget.nodes -= 1
        if self.budget.nodes <= 0:
            return False
        at = self._order[step]
        counts, request = self._counts[at], self._requests[at]
        if not left:
            for n in range(cell, len(free)):
                counts[n] = 0
            return self._next_item(step + 1, free, needs, extra)
        if cell == len(free):
            return False
        here = free[cell]
        most = left if self.demand.items[at].usable[cell] else 0
        for amount, requested in zip(here, request, strict=True):
            if requested:
                most = min(most, amount // requested)
        for earlier in range(cell):  # an earlier interchangeable cell takes no less
            if (
                self._classes[earlier] == self._classes[cell]
                and self._before(free, at, earlier) == here
            ):
                most = min(most, counts[earlier])
        for count in range(most, -1, -1):
            counts[cell] = count
            after = free
            if count:
                after = free.copy()
                after[cell] = tuple(
                    amount - requested * count
                    for amount, requested in zip(here, request, strict=True)
                )
            if self._next_cell(step, cell + 1, left - count, after, needs, extra):
                return True
            if self.budget.nodes <= 0:
                return False
        return False

    def _before(self, free: list[_Amounts], at: int, cell: int) -> _Amounts:
        """Return the free amounts of `cell` before tasks of item `at` were placed on it."""
        count = self._counts[at][cell]
        pairs = zip(free[cell], self._requests[at], strict=True)
        return tuple(amount + requested * count for amount, requested in pairs)

    def _is_enough_left(
        self, step: int, free: list[_Amounts], needs: list[int], extra: int
    ) -> bool:
        """Return whether the free amounts have room for each remaining item alone."""
        possible = [0] * len(needs)
        for at in self._order[step:]:
            item, request = self.demand.items[at], self._requests[at]
            room = 0
            for cell, amounts in enumerate(free):
                if item.usable[cell]:
                    room += min(
                        (a // q for a, q in zip(amounts, request, strict=True) if q),
                        default=item.most,
                    )
            possible[item.group] += min(room, item.most)
        if any(have < need for have, need in zip(possible, needs, strict=True)):
            return False
        return sum(possible) >= sum(needs) + extra
