"""Room for a gang: on which cells all its tasks fit at once, and which units go for them.

Where few units could go, all sets of them are compared. Else the tasks find room one after another,
each at its own best; units of which one turns out not to be needed stay, the dearest first. Tasks
of several groups are packed as placement packs them (`packing`), so no unit goes in vain.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from controlplane.domain.placement.cycle.packing import (
    GangDemand,
    PackingItem,
    SearchBudget,
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

# So many units have 256 sets, which takes a few milliseconds.
MOST_UNITS = 8
# Nodes that the searches for one gang may visit, over all the sets of units that are compared.
_MOST_NODES = 8_000

_Counts = dict[tuple[int, int], int]


def find_many(
    occupants: EvictionUnits,
    need: PreemptionRequest,
    usable: Sequence[Flags],
    *,
    most_units: int = MOST_UNITS,
) -> EvictionPlan | None:
    """Return the best places for all tasks of the need; None: they do not fit at once.

    `usable`: for each part of the need, the cells it may go to.
    """
    requests = [occupants.request_of(part.shape) for part in need.parts]
    known = [request for request in requests if request is not None]
    if len(known) < len(requests):
        return None
    search = _EvictionSearch(occupants, need, known, usable)
    if not search.is_possible():
        return None
    units = search.useful()
    if len(units) <= most_units:
        return search.best_of_all_sets(units)
    return search.one_after_another()


class _EvictionSearch:
    """What stays the same while sets of units are tried."""

    def __init__(
        self,
        occupants: EvictionUnits,
        need: PreemptionRequest,
        requests: Sequence[Vector],
        usable: Sequence[Flags],
    ) -> None:
        self.occupants, self.need, self.usable = occupants, need, usable
        self.parts, self.requests = need.parts, requests
        largest = np.maximum(occupants.capacity.max(axis=0, initial=1), 1)
        sizes = [float((request / largest).max(initial=0)) for request in requests]
        self.order = sorted(range(len(sizes)), key=lambda part: (-sizes[part], part))
        self.free = occupants.free
        self.is_open = occupants.below(need.shape.band)
        self.missing = occupants.missing([(part, part.count) for part in self.parts])
        self.scarcity = Shortfall(occupants, self.missing, self.is_open)
        self.budget = SearchBudget(_MOST_NODES)

    def is_possible(self) -> bool:
        """Return whether the gang fits if all go that could."""
        everything = self.free + self.occupants.evictable(self.need.shape.band).total
        return self.scarcity.is_curable() and self.pack(everything) is not None

    def rooms(self, part: int, free: Matrix, places: Vector | slice = slice(None)) -> Vector:
        """Return how many tasks of a part fit each cell (of `places`, with `free` there), at most
        all.
        """
        request, count = self.requests[part], self.parts[part].count
        asked = request > 0
        fits = np.maximum(free[:, asked], 0) // request[asked]
        return np.asarray(np.where(self.usable[part][places], fits.min(axis=1, initial=count), 0))

    def pack(self, free: Matrix, first: Sequence[int] = ()) -> _Counts | None:
        """Return where all tasks go in `free`: to `first` as far as they fit, then by name.

        If parts stand in each other's way so, a packing is searched for.
        """
        counts = self._fill(free, first)
        if counts is not None or len(self.parts) == 1:
            return counts
        items = [
            PackingItem(part, self.requests[part], np.asarray(self.usable[part]), need.count)
            for part, need in enumerate(self.parts)
        ]
        needs = [need.count for need in self.parts]
        found = find_packing(free.T, GangDemand(items, needs, sum(needs)), self.budget)
        if found is None:
            return None
        return {
            (part, place): int(given[place])
            for part, given in enumerate(found)
            for place in np.flatnonzero(given).tolist()
        }

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
        """Return the units whose going might help."""
        occupants = self.occupants
        helps = np.zeros(len(occupants.entry_unit), dtype=bool)
        for request, usable in zip(self.requests, self.usable, strict=True):
            helps |= usable[occupants.entry_cell] & (occupants.entry_frees[:, request > 0] > 0).any(
                axis=1
            )
        helps &= self.is_open[occupants.entry_unit]
        return np.union1d(occupants.entry_unit[helps], self.scarcity.involved)

    def free_without(self, units: Vector) -> Matrix:
        """Return what cells have free once `units` have gone."""
        free, rows = self.free.copy(), self.occupants.entries_of(units)
        np.add.at(free, self.occupants.entry_cell[rows], self.occupants.entry_frees[rows])
        return free

    def found(self, units: Vector) -> EvictionPlan | None:
        """Return the outcome if `units` go: the cells that they leave are filled first; None: no
        room.
        """
        occupants, free = self.occupants, self.free_without(units)
        if (self.scarcity.freed(units) < self.scarcity.amounts).any():
            return None
        left = np.unique(occupants.entry_cell[occupants.entries_of(units)])
        counts = self.pack(free, left.tolist())
        if counts is None:
            return None
        interactive, batch = occupants.victims[units].sum(axis=0).tolist()
        beyond = self._surplus(units, free, counts)
        return EvictionPlan(
            (interactive, batch, beyond, int(occupants.ages[units].sum())), counts, units
        )

    def _surplus(self, units: Vector, free: Matrix, counts: _Counts) -> int:
        places = np.array(sorted({place for _, place in counts}), dtype=np.int64)
        asked = np.zeros((len(places), free.shape[1]), dtype=np.int64)
        for (part, place), count in counts.items():
            asked[np.searchsorted(places, place)] += self.requests[part] * count
        lacks = np.where(asked > 0, np.maximum(asked - self.free[places], 0), 0)
        freed = free[places] - self.free[places]
        capacity = self.occupants.capacity[places]
        total = int(surplus(freed, lacks, capacity, (slice(None),)).sum())
        scarce = self.scarcity
        if scarce.parts:
            freed = scarce.freed(units)
            total += int(surplus(freed, scarce.amounts, scarce.limits, tuple(scarce.parts)))
        return total

    def best_of_all_sets(self, units: Vector) -> EvictionPlan | None:
        """Return the best of all sets of `units`."""
        best: EvictionPlan | None = None
        for chosen in self._by_victims(units):
            interactive, batch = self.occupants.victims[chosen].sum(axis=0).tolist()
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
        victims = sets @ self.occupants.victims[units]
        for number in np.lexsort((victims[:, 1], victims[:, 0])).tolist():
            yield units[sets[number] > 0]

    def one_after_another(self) -> EvictionPlan | None:
        """Return a set of which no unit can be spared."""
        nobody = self.found(np.zeros(0, dtype=np.int64))
        if nobody is not None:
            return nobody
        trial, units = self.occupants.fork(), list[int]()
        for part in self.order:
            need, left = self.parts[part], self.parts[part].count
            if not self.missing:
                # What is free is taken at once: nobody has to go for it.
                rooms = self.rooms(part, trial.free).tolist()
                for place, room in enumerate(rooms):
                    if room and left:
                        trial.take(need, {(0, place): min(room, left)})
                        left -= min(room, left)
            for _ in range(left):
                one = find_one(trial, need, self.usable[part])
                if one is None:
                    return None
                trial.evict(one.units)
                trial.take(need, one.counts)
                units += one.units.tolist()
        return self._without_the_spare(np.array(sorted(units), dtype=np.int64))

    def _without_the_spare(self, units: Vector) -> EvictionPlan | None:
        free = self.free_without(units)
        spare = int(self.rooms(0, free).sum()) - self.need.count
        for unit in dearest_first(self.occupants.victims, self.occupants.ages, units).tolist():
            rows = self.occupants.entries_of(np.array([unit]))
            places = self.occupants.entry_cell[rows]
            before = int(self.rooms(0, free[places], places).sum())
            free[places] -= self.occupants.entry_frees[rows]  # a unit has one entry on a cell
            lost = before - int(self.rooms(0, free[places], places).sum())
            others = units[units != unit]
            if lost <= spare and self._fits(free, others):
                units, spare = others, spare - lost
            else:
                free[places] += self.occupants.entry_frees[rows]
        return self.found(units)

    def _fits(self, free: Matrix, units: Vector) -> bool:
        """Return whether all fit into `free`, where `units` have gone; one part has room, as we
        know.
        """
        if (self.scarcity.freed(units) < self.scarcity.amounts).any():
            return False
        return len(self.parts) == 1 or self.pack(free) is not None
