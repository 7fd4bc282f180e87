"""Room for a gang: on which cells all its tasks fit at once, and which units go for them.

Where few units could go, all sets of them are compared. Else the tasks find room one after another,
each at its own best; units of which one turns out not to be needed stay, the dearest first.
"""

import numpy as np

from controlplane.domain.placement.cover import dearest_first, surplus
from controlplane.domain.placement.interfaces import Matrix, Vector
from controlplane.domain.placement.occupants import Flags, Need, Occupants
from controlplane.domain.placement.scarcity import Scarcity
from controlplane.domain.placement.victims import Found, find_one

# So many units have 1,024 sets.
MOST_UNITS = 10


def find_many(
    occupants: Occupants, need: Need, usable: Flags, *, most_units: int = MOST_UNITS
) -> Found | None:
    """The best places for all tasks of the need, within `usable`; None: they do not fit at once."""
    search = _Search.of(occupants, need, usable)
    if search is None:
        return None
    if not len(search.missing) and search.is_enough(search.free, search.none):
        return search.found(search.none)
    if not search.scarcity.is_curable():
        return None
    units = search.useful()
    if len(units) <= most_units:
        return search.best_of_all_sets(units)
    return search.one_after_another()


class _Search:
    """What stays the same while sets of units are tried."""

    @classmethod
    def of(cls, occupants: Occupants, need: Need, usable: Flags) -> "_Search | None":
        """None: the gang does not fit even if all go that could."""
        request = occupants.request_of(need.shape)
        if request is None:
            return None
        search = cls(occupants, need, usable, request)
        everything = occupants.free + occupants.evictable(need.shape.band).total
        return search if search.rooms(everything, usable).sum() >= need.count else None

    def __init__(self, occupants: Occupants, need: Need, usable: Flags, request: Vector) -> None:
        self.occupants, self.need, self.usable, self.request = occupants, need, usable, request
        self.free = occupants.free
        self.none: Vector = np.zeros(0, dtype=np.int64)
        self.is_open = occupants.below(need.shape.band)
        self.missing = occupants.missing(need, need.count)
        self.scarcity = Scarcity(occupants, self.missing, self.is_open)

    def rooms(self, free: Matrix, usable: Flags) -> Vector:
        """How many of the tasks fit each cell, at most all."""
        asked = self.request > 0
        fits = np.maximum(free[:, asked], 0) // self.request[asked]
        fits = fits.min(axis=1, initial=self.need.count)
        return np.asarray(np.where(usable, fits, 0))

    def is_enough(self, free: Matrix, units: Vector) -> bool:
        """Whether all tasks fit into `free`, which is what there is once `units` have gone."""
        if self.rooms(free, self.usable).sum() < self.need.count:
            return False
        return bool((self.scarcity.freed(units) >= self.scarcity.amounts).all())

    def useful(self) -> Vector:
        """The units whose going might help."""
        occupants = self.occupants
        helps = self.usable[occupants.entry_cell] & self.is_open[occupants.entry_unit]
        helps &= (occupants.entry_frees[:, self.request > 0] > 0).any(axis=1)
        return np.union1d(occupants.entry_unit[helps], self.scarcity.involved)

    def free_without(self, units: Vector) -> Matrix:
        """What cells have free once `units` have gone."""
        free, rows = self.free.copy(), self.occupants.entries_of(units)
        np.add.at(free, self.occupants.entry_cell[rows], self.occupants.entry_frees[rows])
        return free

    def found(self, units: Vector) -> Found:
        """The outcome: cells that units leave are filled first, then others, each by name."""
        occupants, free = self.occupants, self.free_without(units)
        left = np.unique(occupants.entry_cell[occupants.entries_of(units)])
        rooms = self.rooms(free, self.usable)
        others = np.setdiff1d(np.flatnonzero(rooms), left)
        counts, open_tasks = dict[int, int](), self.need.count
        for place in np.concatenate([left, others]).tolist():
            count = min(int(rooms[place]), open_tasks)
            if count:
                counts[place] = count
                open_tasks -= count
        beyond = self._surplus(units, free, counts)
        interactive, batch = occupants.victims[units].sum(axis=0).tolist()
        cost = (interactive, batch, beyond, int(occupants.ages[units].sum()))
        return Found(cost, counts, units)

    def _surplus(self, units: Vector, free: Matrix, counts: dict[int, int]) -> int:
        places = np.array(sorted(counts), dtype=np.int64)
        tasks = np.array([counts[place] for place in places.tolist()], dtype=np.int64)
        lacks = np.maximum(tasks[:, None] * self.request - self.free[places], 0)
        lacks = np.where(self.request > 0, lacks, 0)
        freed = free[places] - self.free[places]
        capacity = self.occupants.capacity[places]
        total = int(surplus(freed, lacks, capacity, (slice(None),)).sum())
        scarce = self.scarcity
        if scarce.parts:
            freed = scarce.freed(units)
            total += int(surplus(freed, scarce.amounts, scarce.limits, tuple(scarce.parts)))
        return total

    def best_of_all_sets(self, units: Vector) -> Found | None:
        """The best of all sets of `units`."""
        numbers = np.arange(2 ** len(units))
        sets = (numbers[:, None] >> np.arange(len(units))) & 1
        occupants = self.occupants
        rows = occupants.entries_of(units)
        left = np.unique(occupants.entry_cell[rows])
        elsewhere = self.usable.copy()
        elsewhere[left] = False
        rooms = np.full(len(sets), self.rooms(self.free, elsewhere).sum())
        for place in left[self.usable[left]].tolist():
            here = rows[occupants.entry_cell[rows] == place]
            members = np.searchsorted(units, occupants.entry_unit[here])
            free = self.free[place] + sets[:, members] @ occupants.entry_frees[here]
            rooms += self.rooms(free, np.ones(len(sets), dtype=bool))
        enough = rooms >= self.need.count
        freed = self.scarcity.freed_by_sets(units, sets)
        sets = sets[enough & (freed >= self.scarcity.amounts).all(axis=1)]
        if not len(sets):
            return None
        victims = sets @ occupants.victims[units]
        fewest = victims[np.lexsort((victims[:, 1], victims[:, 0]))[0]]
        best = sets[(victims == fewest).all(axis=1)]
        return min((self.found(units[chosen > 0]) for chosen in best), key=lambda found: found.rank)

    def one_after_another(self) -> Found | None:
        """A set of which no unit can be spared."""
        trial, units, left = self.occupants.fork(), list[int](), self.need.count
        if not self.missing:
            rooms = self.rooms(self.free, self.usable)
            trial.take(
                self.need, {place: int(rooms[place]) for place in np.flatnonzero(rooms).tolist()}
            )
            left -= int(rooms.sum())
        for _ in range(left):
            one = find_one(trial, self.need, self.usable)
            if one is None:
                return None
            trial.evict(one.units)
            trial.take(self.need, one.counts)
            units += one.units.tolist()
        kept = np.array(sorted(units), dtype=np.int64)
        free = self.free_without(kept)
        for unit in dearest_first(self.occupants.victims, self.occupants.ages, kept).tolist():
            rows = self.occupants.entries_of(np.array([unit]))
            cells, frees = self.occupants.entry_cell[rows], self.occupants.entry_frees[rows]
            free[cells] -= frees  # a unit has one entry on a cell
            others = kept[kept != unit]
            if self.is_enough(free, others):
                kept = others
            else:
                free[cells] += frees
        return self.found(kept)
