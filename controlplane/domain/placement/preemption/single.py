"""Room for one task: on which cell, and which units go for it.

All single units are compared in one vectorised step. Where one does not do, cells are searched in
the order of how few victims they could do with, until no other can be better; of cells that look
equally good only a few, so that the work is bounded.
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

# A need looks closely at so many cells, and on each compares so many sets: a hundred needs that
# each evict several out of ten thousand attempts then take a fifth of a second.
MOST_CELLS = 8
MOST_SETS = 4_000

NO_UNITS: Vector = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What it costs, where the tasks go, and which units go for them.

    `counts`: how many tasks, by part of the need and place (index of a cell).
    """

    cost: Cost
    counts: dict[tuple[int, int], int]
    units: Vector = field(default_factory=lambda: NO_UNITS)

    @property
    def rank(self) -> tuple[Cost, list[tuple[tuple[int, int], int]]]:
        """What is compared: the cost, then the cells by name."""
        return self.cost, sorted(self.counts.items())


def find_one(
    occupants: EvictionUnits, need: PreemptionRequest, usable: Flags
) -> EvictionPlan | None:
    """Return the best place for one task of the need, and who goes for it; None: it fits nowhere.

    Nobody goes where it fits once what is leaving has left.
    """
    request = occupants.request_of(need.shape)
    if request is None:
        return None
    lacks = np.where(request > 0, np.maximum(request - occupants.free, 0), 0)
    reach = occupants.evictable(need.shape.band)
    reachable: Flags = usable & (lacks <= reach.total).all(axis=1)
    if not reachable.any():
        return None
    missing = occupants.missing([(need, 1)])
    fitting = np.flatnonzero(reachable & ~lacks.any(axis=1))
    if not missing and len(fitting):
        return EvictionPlan((0, 0, 0, 0), {(0, int(fitting[0])): 1})
    is_open = occupants.below(need.shape.band)
    scarcity = Shortfall(occupants, missing, is_open)
    if not scarcity.is_curable():
        return None
    best = None if missing else _best_unit(occupants, lacks, reachable, is_open, reach)
    first, second = reach.least_units(lacks)
    if missing:
        anywhere = scarcity.least_units(occupants)
        first = np.maximum(first, anywhere[0])
        second = np.where(first == 0, np.maximum(second, anywhere[1]), 0)
    places = np.flatnonzero(reachable)
    load = reach.load(lacks)
    order = places[np.lexsort((places, load[places], second[places], first[places]))]
    for place in order[:MOST_CELLS].tolist():
        least = (int(first[place]), int(second[place]))
        if best is not None and not _may_be_better(least, best, all_units_compared=not missing):
            break
        found = _search(occupants, place, lacks[place], is_open, scarcity)
        if best is None or found.rank < best.rank:
            best = found
    return best


def _may_be_better(least: tuple[int, int], best: EvictionPlan, *, all_units_compared: bool) -> bool:
    """Return whether a place that needs at least so many victims may be better than the best so
    far.
    """
    if all_units_compared and sum(best.cost[:2]) == 1:
        return least[0] < best.cost[0]  # two units are dearer, unless both are BATCH
    return least <= best.cost[:2]


def _best_unit(
    occupants: EvictionUnits,
    lacks: Matrix,
    reachable: Flags,
    is_open: Flags,
    reach: EvictableCapacity,
) -> EvictionPlan | None:
    """Return the best unit that makes room all by itself, wherever it is."""
    for largest, band in reach.by_band():
        cells = reachable & (lacks <= largest).all(axis=1)
        if not cells.any():
            continue
        is_candidate = cells[occupants.entry_cell] & is_open[occupants.entry_unit]
        rows = np.flatnonzero(is_candidate & (occupants.band[occupants.entry_unit] == band))
        for name in np.flatnonzero(lacks[cells].any(axis=0)).tolist():
            frees = occupants.entry_frees[rows, name]
            rows = rows[frees >= lacks[occupants.entry_cell[rows], name]]
        if len(rows):
            return _best_of(occupants, lacks, rows)
    return None


def _best_of(occupants: EvictionUnits, lacks: Matrix, rows: Vector) -> EvictionPlan:
    """Return the best of entries of one band, each of which is enough for its cell."""
    victims = occupants.victims[occupants.entry_unit[rows]].sum(axis=1)
    rows = rows[victims == victims.min()]
    cells, units = occupants.entry_cell[rows], occupants.entry_unit[rows]
    ages, capacity = occupants.ages[units], occupants.capacity[cells]
    beyond = surplus(occupants.entry_frees[rows], lacks[cells], capacity, (slice(None),))
    best = np.lexsort((units, cells, ages, beyond))[0]
    interactive, batch = occupants.victims[units[best]].tolist()
    cost = (interactive, batch, int(beyond[best]), int(ages[best]))
    return EvictionPlan(cost, {(0, int(cells[best])): 1}, units[best : best + 1])


def _search(
    occupants: EvictionUnits, place: int, lacking: Vector, is_open: Flags, scarcity: Shortfall
) -> EvictionPlan:
    """Return the best set of units for a place; together, those that could go do make room
    there.
    """
    rows = occupants.entries_on(place)
    rows = rows[is_open[occupants.entry_unit[rows]]]
    units = occupants.entry_unit[rows]
    if scarcity.parts:
        units = np.union1d(units, scarcity.involved)
    here = len(lacking)
    frees = np.zeros((len(units), here + len(scarcity.amounts)), dtype=np.int64)
    frees[np.searchsorted(units, occupants.entry_unit[rows]), :here] = occupants.entry_frees[rows]
    frees[:, here:] = scarcity.frees[units]
    parts = [slice(part.start + here, part.stop + here) for part in scarcity.parts]
    lack = ShortfallVector(
        np.concatenate([lacking, scarcity.amounts]),
        np.concatenate([occupants.capacity[place], scarcity.limits]),
        (slice(0, here), *parts),
    )
    choices = EvictionChoices(occupants.victims[units], frees, occupants.ages[units])
    if not scarcity.has_bundles:
        chosen = cheapest_cover(choices, lack, most_sets=MOST_SETS)
        assert chosen is not None
        return EvictionPlan(cost_of(choices, chosen, lack), {(0, place): 1}, units[chosen])
    bundles, member_of = np.unique(scarcity.bundle[units], return_inverse=True)
    together = EvictionChoices(
        _sum_by(member_of, len(bundles), choices.victims),
        _sum_by(member_of, len(bundles), frees),
        _sum_by(member_of, len(bundles), choices.ages),
    )
    chosen = cheapest_cover(together, lack, most_sets=MOST_SETS)
    assert chosen is not None
    kept = _without_the_spare(
        choices, np.flatnonzero(np.isin(member_of, chosen)), units, lack, scarcity
    )
    freed = frees[kept].sum(axis=0)
    freed[here:] = scarcity.freed(units[kept])
    interactive, batch = choices.victims[kept].sum(axis=0).tolist()
    beyond = int(surplus(freed, lack.amounts, lack.limits, lack.parts))
    cost = (interactive, batch, beyond, int(choices.ages[kept].sum()))
    return EvictionPlan(cost, {(0, place): 1}, units[kept])


def _sum_by(groups: Vector, count: int, values: Matrix) -> Matrix:
    sums = np.zeros((count, *values.shape[1:]), dtype=np.int64)
    np.add.at(sums, groups, values)
    return sums


def _without_the_spare(
    choices: EvictionChoices,
    rows: Vector,
    units: Vector,
    lack: ShortfallVector,
    scarcity: Shortfall,
) -> Vector:
    """Of jobs that go whole for nothing but room, what is not needed stays."""
    here = len(lack.amounts) - len(scarcity.amounts)
    for row in dearest_first(choices.victims, choices.ages, rows).tolist():
        others = rows[rows != row]
        freed = choices.frees[others].sum(axis=0)
        freed[here:] = scarcity.freed(units[others])
        if (freed >= lack.amounts).all():
            rows = others
    return rows
