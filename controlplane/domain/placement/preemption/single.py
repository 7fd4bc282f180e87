"""Room for one task: the cell, and the units to evict.

All single units are compared in one vectorised step. If none suffices, cells are searched in the
order of a lower bound of victims, until no other can be better; the number of searched cells is
bounded.
"""

from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.placement.model.interfaces import Matrix, Vector
from controlplane.domain.placement.preemption.candidates import (
    EvictableCapacity,
    EvictionUnits,
    Flags,
    PreemptionRequest,
)
from controlplane.domain.placement.preemption.cover import (
    Cost,
    EvictionChoices,
    ShortfallVector,
    cheapest_cover,
    cost_of,
    dearest_first,
    surplus,
)
from controlplane.domain.placement.preemption.shortfall import Shortfall

# Limits per request: searched cells, and compared sets on each. A hundred requests that each evict
# several of ten thousand attempts then take 0.2 s.
MOST_CELLS = 8
MOST_SETS = 4_000

NO_UNITS: Vector = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """The cost, the placement and the units of an eviction.

    `counts`: number of tasks, by part of the request and place (index of a cell).
    """

    cost: Cost
    counts: dict[tuple[int, int], int]
    units: Vector = field(default_factory=lambda: NO_UNITS)

    @property
    def rank(self) -> tuple[Cost, list[tuple[tuple[int, int], int]]]:
        """Return the sort key: the cost, then the cells by name."""
        return self.cost, sorted(self.counts.items())


def find_one(
    candidates: EvictionUnits, need: PreemptionRequest, usable: Flags
) -> EvictionPlan | None:
    """Return the best plan for one task of the request; None: it fits nowhere.

    If it fits after terminating attempts are released, nothing is evicted.
    """
    request = candidates.request_of(need.shape)
    if request is None:
        return None
    lacks = np.where(request > 0, np.maximum(request - candidates.free, 0), 0)
    reach = candidates.evictable(need.shape.band)
    reachable: Flags = usable & (lacks <= reach.total).all(axis=1)
    if not reachable.any():
        return None
    missing = candidates.missing([(need, 1)])
    fitting = np.flatnonzero(reachable & ~lacks.any(axis=1))
    if not missing and len(fitting):
        return EvictionPlan((0, 0, 0, 0), {(0, int(fitting[0])): 1})
    is_open = candidates.below(need.shape.band)
    shortfall = Shortfall(candidates, missing, is_open)
    if not shortfall.is_curable():
        return None
    best = None if missing else _best_unit(candidates, lacks, reachable, is_open, reach)
    first, second = reach.least_units(lacks)
    if missing:
        anywhere = shortfall.least_units(candidates)
        first = np.maximum(first, anywhere[0])
        second = np.where(first == 0, np.maximum(second, anywhere[1]), 0)
    places = np.flatnonzero(reachable)
    load = reach.load(lacks)
    order = places[np.lexsort((places, load[places], second[places], first[places]))]
    for place in order[:MOST_CELLS].tolist():
        least = (int(first[place]), int(second[place]))
        if best is not None and not _may_be_better(least, best, all_units_compared=not missing):
            break
        found = _search(candidates, place, lacks[place], is_open, shortfall)
        if best is None or found.rank < best.rank:
            best = found
    return best


def _may_be_better(least: tuple[int, int], best: EvictionPlan, *, all_units_compared: bool) -> bool:
    """Return whether a place with a lower bound of victims may be better than `best`."""
    if all_units_compared and sum(best.cost[:2]) == 1:
        return least[0] < best.cost[0]  # two units cost more, unless both are BATCH
    return least <= best.cost[:2]


def _best_unit(
    candidates: EvictionUnits,
    lacks: Matrix,
    reachable: Flags,
    is_open: Flags,
    reach: EvictableCapacity,
) -> EvictionPlan | None:
    """Return the plan with the best unit that makes enough room alone, on any cell."""
    for largest, band in reach.by_band():
        cells = reachable & (lacks <= largest).all(axis=1)
        if not cells.any():
            continue
        is_candidate = cells[candidates.entry_cell] & is_open[candidates.entry_unit]
        rows = np.flatnonzero(is_candidate & (candidates.band[candidates.entry_unit] == band))
        for name in np.flatnonzero(lacks[cells].any(axis=0)).tolist():
            frees = candidates.entry_frees[rows, name]
            rows = rows[frees >= lacks[candidates.entry_cell[rows], name]]
        if len(rows):
            return _best_of(candidates, lacks, rows)
    return None


def _best_of(candidates: EvictionUnits, lacks: Matrix, rows: Vector) -> EvictionPlan:
    """Return the best of entries of one band, each of which suffices on its cell."""
    victims = candidates.victims[candidates.entry_unit[rows]].sum(axis=1)
    rows = rows[victims == victims.min()]
    cells, units = candidates.entry_cell[rows], candidates.entry_unit[rows]
    ages, capacity = candidates.ages[units], candidates.capacity[cells]
    beyond = surplus(candidates.entry_frees[rows], lacks[cells], capacity, (slice(None),))
    best = np.lexsort((units, cells, ages, beyond))[0]
    interactive, batch = candidates.victims[units[best]].tolist()
    cost = (interactive, batch, int(beyond[best]), int(ages[best]))
    return EvictionPlan(cost, {(0, int(cells[best])): 1}, units[best : best + 1])


def _search(
    candidates: EvictionUnits, place: int, lacking: Vector, is_open: Flags, shortfall: Shortfall
) -> EvictionPlan:
    """Return the best set of units for a place where all candidates together make room."""
    rows = candidates.entries_on(place)
    rows = rows[is_open[candidates.entry_unit[rows]]]
    units = candidates.entry_unit[rows]
    if shortfall.parts:
        units = np.union1d(units, shortfall.involved)
    here = len(lacking)
    frees = np.zeros((len(units), here + len(shortfall.amounts)), dtype=np.int64)
    frees[np.searchsorted(units, candidates.entry_unit[rows]), :here] = candidates.entry_frees[rows]
    frees[:, here:] = shortfall.frees[units]
    parts = [slice(part.start + here, part.stop + here) for part in shortfall.parts]
    lack = ShortfallVector(
        np.concatenate([lacking, shortfall.amounts]),
        np.concatenate([candidates.capacity[place], shortfall.limits]),
        (slice(0, here), *parts),
    )
    choices = EvictionChoices(candidates.victims[units], frees, candidates.ages[units])
    if not shortfall.has_bundles:
        chosen = cheapest_cover(choices, lack, most_sets=MOST_SETS)
        assert chosen is not None
        return EvictionPlan(cost_of(choices, chosen, lack), {(0, place): 1}, units[chosen])
    bundles, member_of = np.unique(shortfall.bundle[units], return_inverse=True)
    together = EvictionChoices(
        _sum_by(member_of, len(bundles), choices.victims),
        _sum_by(member_of, len(bundles), frees),
        _sum_by(member_of, len(bundles), choices.ages),
    )
    chosen = cheapest_cover(together, lack, most_sets=MOST_SETS)
    assert chosen is not None
    kept = _without_spare_units(
        choices, np.flatnonzero(np.isin(member_of, chosen)), units, lack, shortfall
    )
    freed = frees[kept].sum(axis=0)
    freed[here:] = shortfall.freed(units[kept])
    interactive, batch = choices.victims[kept].sum(axis=0).tolist()
    beyond = int(surplus(freed, lack.amounts, lack.limits, lack.parts))
    cost = (interactive, batch, beyond, int(choices.ages[kept].sum()))
    return EvictionPlan(cost, {(0, place): 1}, units[kept])


def _sum_by(groups: Vector, count: int, values: Matrix) -> Matrix:
    sums = np.zeros((count, *values.shape[1:]), dtype=np.int64)
    np.add.at(sums, groups, values)
    return sums


def _without_spare_units(
    choices: EvictionChoices,
    rows: Vector,
    units: Vector,
    lack: ShortfallVector,
    shortfall: Shortfall,
) -> Vector:
    """Return `rows` without the units that are not needed."""
    here = len(lack.amounts) - len(shortfall.amounts)
    for row in dearest_first(choices.victims, choices.ages, rows).tolist():
        others = rows[rows != row]
        freed = choices.frees[others].sum(axis=0)
        freed[here:] = shortfall.freed(units[others])
        if (freed >= lack.amounts).all():
            rows = others
    return rows
