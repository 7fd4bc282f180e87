"""Room for a gang: cells on which all its tasks fit at once, and the units to evict.

With few candidates, all sets of units are compared. Else room is made for one task after another,
each with its cheapest units; units that are not needed are dropped, the most expensive first. Tasks
of several groups are packed as in placement (`packing`), so that no unit is evicted needlessly.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from controlplane.domain.placement.cycle.packing import (
    PackingItem,
    SearchBudget,
    demand_of,
    find_packing,
)
from controlplane.domain.placement.model.interfaces import Matrix, Vector
from controlplane.domain.placement.preemption.candidates import (
    EvictionUnits,
    Flags,
    PreemptionRequest,
)
from controlplane.domain.placement.preemption.cover import dearest_first, surplus
from controlplane.domain.placement.preemption.shortfall import Shortfall
from controlplane.domain.placement.preemption.single import EvictionPlan, find_one

# This many units have 256 sets, which takes a few milliseconds.
MOST_UNITS = 8
# Nodes that the searches for one gang may visit, over all compared sets of units.
_MOST_NODES = 8_000

_Counts = dict[tuple[int, int], int]


def find_many(
    candidates: EvictionUnits,
    need: PreemptionRequest,
    usable: Sequence[Flags],
    *,
    most_units: int = MOST_UNITS,
) -> EvictionPlan | None:
    """Return the best plan for all tasks of the request; None: they do not fit at once.

    `usable`: the usable cells of each part.
    """
    requests = [candidates.request_of(part.shape) for part in need.parts]
    known = [request for request in requests if request is not None]
    if len(known) < len(requests):
        return None
    search = _EvictionSearch(candidates, need, known, usable)
    if not search.is_possible():
        return None
    units = search.useful()
    if len(units) <= most_units:
        return search.best_of_all_sets(units)
    return search.one_after_another()


class _EvictionSearch:
    """The common state of trials with sets of units."""

    def __init__(
        self,
        candidates: EvictionUnits,
        need: PreemptionRequest,
        requests: Sequence[Vector],
        usable: Sequence[Flags],
    ) -> None:
        self.candidates, self.need, self.usable = candidates, need, usable
        self.parts, self.requests = need.parts, requests
        largest = np.maximum(candidates.capacity.max(axis=0, initial=1), 1)
        sizes = [float((request / largest).max(initial=0)) for request in requests]
        self.order = sorted(range(len(sizes)), key=lambda part: (-sizes[part], part))
        self.free = candidates.free
        self.is_open = candidates.below(need.shape.band)
        self.missing = candidates.missing([(part, part.count) for part in self.parts])
        self.shortfall = Shortfall(candidates, self.missing, self.is_open)
        self.budget = SearchBudget(_MOST_NODES)
        most = [part.count if part.most is None else part.most for part in self.parts]
        self.is_split_fixed = most == [part.count for part in self.parts]
        items = [
            PackingItem(part.group_id, request, np.asarray(flags), limit)
            for part, request, flags, limit in zip(self.parts, requests, usable, most, strict=True)
        ]
        needs = {part.group_id: part.least for part in self.parts}
        self.demand = demand_of(items, needs, need.tasks)

    def is_possible(self) -> bool:
        """Return whether the gang fits if all candidates are evicted."""
        everything = self.free + self.candidates.evictable(self.need.shape.band).total
        return self.shortfall.is_curable() and self.pack(everything) is not None

    def rooms(self, part: int, free: Matrix, places: Vector | slice = slice(None)) -> Vector:
        """Return how many tasks of a part fit each cell of `places` with `free` amounts."""
        request, count = self.requests[part], self.parts[part].count
        requested = request > 0
        fits = np.maximum(free[:, requested], 0) // request[requested]
        return np.asarray(np.where(self.usable[part][places], fits.min(axis=1, initial=count), 0))

    def pack(self, free: Matrix, first: Sequence[int] = ()) -> _Counts | None:
        """Return counts that place all tasks in `free`: on `first`, then on cells by name.

        If the parts do not fit this way, a packing is searched, of any split that meets the minima.
        """
        counts = self._fill(free, first)
        if counts is not None or len(self.parts) == 1:
            return counts
        found = find_packing(free.T, self.demand, self.budget)
        if found is None or not self._is_within_shortfall([int(given.sum()) for given in found]):
            return None
        return {
            (part, place): int(given[place])
            for part, given in enumerate(found)
            for place in np.flatnonzero(given).tolist()
        }

    def _is_within_shortfall(self, tasks: Sequence[int]) -> bool:
        """Return whether a split needs no more of quotas and tokens than the proposed one."""
        if self.is_split_fixed:
            return True
        return self.candidates.missing([*zip(self.parts, tasks, strict=True)]) == self.missing

    def _fill(self, free: Matrix, first: Sequence[int]) -> _Counts | None:
        """Fill cell after cell, the largest part first."""
        counts = _Counts()
        for part in self.order:
            rooms, left = self.rooms(part, free), self.parts[part].count
            if int(rooms.sum()) < left:
                return None
            others = np.flatnonzero(rooms).tolist()
            here = dict[int, int]()
            for place in [*first, *others]:
                count = min(int(rooms[place]), left)
                if count and place not in here:
                    here[place] = count
                    left -= count
                if not left:
                    break
            counts.update({(part, place): count for place, count in here.items()})
            if len(self.parts) > 1:
                free = free.copy()
                for place, count in here.items():
                    free[place] -= self.requests[part] * count
        return counts

    def useful(self) -> Vector:
        """Return the units that free a required amount."""
        candidates = self.candidates
        helps = np.zeros(len(candidates.entry_unit), dtype=bool)
        for request, usable in zip(self.requests, self.usable, strict=True):
            helps |= usable[candidates.entry_cell] & (
                candidates.entry_frees[:, request > 0] > 0
            ).any(axis=1)
        helps &= self.is_open[candidates.entry_unit]
        return np.union1d(candidates.entry_unit[helps], self.shortfall.involved)

    def free_without(self, units: Vector) -> Matrix:
        """Return the free amounts of cells without `units`."""
        free, rows = self.free.copy(), self.candidates.entries_of(units)
        np.add.at(free, self.candidates.entry_cell[rows], self.candidates.entry_frees[rows])
        return free

    def found(self, units: Vector) -> EvictionPlan | None:
        """Return the plan that evicts `units` and fills their cells first; None: no room."""
        candidates, free = self.candidates, self.free_without(units)
        if (self.shortfall.freed(units) < self.shortfall.amounts).any():
            return None
        left = np.unique(candidates.entry_cell[candidates.entries_of(units)])
        counts = self.pack(free, left.tolist())
        if counts is None:
            return None
        interactive, batch = candidates.victims[units].sum(axis=0).tolist()
        beyond = self._surplus(units, free, counts)
        return EvictionPlan(
            (interactive, batch, beyond, int(candidates.ages[units].sum())), counts, units
        )

    def _surplus(self, units: Vector, free: Matrix, counts: _Counts) -> int:
        places = np.array(sorted({place for _, place in counts}), dtype=np.int64)
        requested = np.zeros((len(places), free.shape[1]), dtype=np.int64)
        for (part, place), count in counts.items():
            requested[np.searchsorted(places, place)] += self.requests[part] * count
        lacks = np.where(requested > 0, np.maximum(requested - self.free[places], 0), 0)
        freed = free[places] - self.free[places]
        capacity = self.candidates.capacity[places]
        total = int(surplus(freed, lacks, capacity, (slice(None),)).sum())
        scarce = self.shortfall
        if scarce.parts:
            freed = scarce.freed(units)
            total += int(surplus(freed, scarce.amounts, scarce.limits, tuple(scarce.parts)))
        return total

    def best_of_all_sets(self, units: Vector) -> EvictionPlan | None:
        """Return the best of all sets of `units`."""
        best: EvictionPlan | None = None
        for chosen in self._by_victims(units):
            interactive, batch = self.candidates.victims[chosen].sum(axis=0).tolist()
            if best is not None and (interactive, batch) > best.cost[:2]:
                break
            found = self.found(chosen)
            if found is not None and (best is None or found.rank < best.rank):
                best = found
        return best

    def _by_victims(self, units: Vector) -> Iterator[Vector]:
        """Return all sets of `units`, those with the fewest victims first."""
        numbers = np.arange(2 ** len(units))
        sets = (numbers[:, None] >> np.arange(len(units))) & 1
        victims = sets @ self.candidates.victims[units]
        for number in np.lexsort((victims[:, 1], victims[:, 0])).tolist():
            yield units[sets[number] > 0]

    def one_after_another(self) -> EvictionPlan | None:
        """Return a plan without spare units.

        If tasks placed one by one leave no room for the last ones, all units on the cells of a
        packing are tried.
        """
        without_eviction = self.found(np.zeros(0, dtype=np.int64))
        if without_eviction is not None:
            return without_eviction
        trial, units = self.candidates.fork(), list[int]()
        for part in self.order:
            need, left = self.parts[part], self.parts[part].count
            if not self.missing:
                # Use free capacity first, which needs no eviction.
                rooms = self.rooms(part, trial.free).tolist()
                for place, room in enumerate(rooms):
                    if room and left:
                        trial.take(need, {(0, place): min(room, left)})
                        left -= min(room, left)
            for _ in range(left):
                one = find_one(trial, need, self.usable[part])
                if one is None:
                    return self._without_spare_units(self._units_of_a_packing())
                trial.evict(one.units)
                trial.take(need, one.counts)
                units += one.units.tolist()
        return self._without_spare_units(np.array(sorted(units), dtype=np.int64))

    def _units_of_a_packing(self) -> Vector:
        """Return the units on the cells that the gang uses if all candidates are evicted."""
        counts = self.pack(self.free + self.candidates.evictable(self.need.shape.band).total) or {}
        cells = np.unique([place for _, place in counts])
        is_near = np.zeros(len(self.candidates.tasks), dtype=bool)
        is_near[self.candidates.entry_unit[np.isin(self.candidates.entry_cell, cells)]] = True
        is_near[self.shortfall.involved] = True
        return np.flatnonzero(is_near & self.is_open)

    def _without_spare_units(self, units: Vector) -> EvictionPlan | None:
        free = self.free_without(units)
        spare = int(self.rooms(0, free).sum()) - self.need.count
        for unit in dearest_first(self.candidates.victims, self.candidates.ages, units).tolist():
            rows = self.candidates.entries_of(np.array([unit]))
            places = self.candidates.entry_cell[rows]
            before = int(self.rooms(0, free[places], places).sum())
            free[places] -= self.candidates.entry_frees[rows]  # a unit has one entry on a cell
            lost = before - int(self.rooms(0, free[places], places).sum())
            others = units[units != unit]
            may_go = lost <= spare or not self.is_split_fixed
            if may_go and self._fits(free, others):
                units, spare = others, spare - lost
            else:
                free[places] += self.candidates.entry_frees[rows]
        return self.found(units)

    def _fits(self, free: Matrix, units: Vector) -> bool:
        """Return whether all tasks fit into `free` without `units`; a single part always does."""
        if (self.shortfall.freed(units) < self.shortfall.amounts).any():
            return False
        return len(self.parts) == 1 or self.pack(free) is not None
