"""Whom to evict for whom: only lower bands, only if the preemptor then fits, and as few as will do.

Of all sets of victims that make room it takes the one with, in this order:

1. fewest INTERACTIVE victims,
2. fewest BATCH victims,
3. least surplus: what comes free beyond the lack, as dominant share of the preemptor's cell; where
   a quota or token blocks, what comes free there beyond the lack, as share of its limit, is added,
4. the youngest: the least running time lost, of all victims together,
5. the first cell by name.

So none of them can be left out. A gang goes whole, wherever its members are, and not at all if one
of them must stay. Where a quota blocks, only what counts against that quota cures it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.domain.placement.model.interfaces import Matrix
from controlplane.domain.placement.model.snapshot import (
    CellFacts,
    EvictableAttempt,
    ReleasingCapacity,
)
from controlplane.domain.placement.preemption.candidates import (
    Allowance,
    EvictionUnits,
    PreemptionRequest,
)
from controlplane.domain.placement.preemption.gang import find_many
from controlplane.domain.placement.preemption.single import EvictionPlan, find_one

# A place stays kept so long after the last victim should have gone.
NOMINATION_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Eviction:
    """Who goes, and where the preemptor's place is kept, `until` when.

    `group_ids`, `cell_ids`, `counts`: how many tasks of which of the need's groups go where, group
    by group, by name of the cell. `victims`: ids of tasks, in order; none: enough is leaving
    already, and its place is only kept.
    """

    need: PreemptionRequest
    group_ids: tuple[int, ...]
    cell_ids: tuple[int, ...]
    counts: tuple[int, ...]
    victims: tuple[int, ...]
    until: datetime

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Group, cell and how many of its tasks."""
        return zip(self.group_ids, self.cell_ids, self.counts, strict=True)


def choose_evictions(
    needs: Iterable[PreemptionRequest],
    cells: Sequence[CellFacts],
    names: Sequence[str],
    free: Matrix,
    running: Iterable[EvictableAttempt],
    *,
    leaving: Iterable[ReleasingCapacity] = (),
    allowances: Sequence[Allowance] = (),
    now: datetime,
    limit: int,
) -> list[Eviction]:
    """Whom to evict for `needs`, which come in order of band and queue; one that fits nowhere is
    left out.

    `cells`: that may take tasks, by name. `free`: resources (`names`) x cells, capacity less what
    unreleased attempts hold and less the room that is kept for others (so it may be below 0).
    `running`: all attempts of the pool that have not ended, whether or not they may be evicted and
    wherever they are. `leaving`: those that have ended and are not released. `allowances`: of every
    scope that has a limit, and of the pool, if it has tokens.

    What a need evicts and takes is booked: no victim is taken twice, and what it leaves over is
    there for the next. At most `limit` tasks get a place, but for a gang that needs more at once.
    """
    occupants: EvictionUnits | None = None
    hopeless = set[tuple[object, ...]]()
    evictions, left = list[Eviction](), limit
    for need in needs:
        if left <= 0:
            break
        if occupants is None:
            occupants = EvictionUnits(cells, names, free, running, leaving, allowances, now)
        kind = _kind_of(need)
        if kind in hopeless or (evictions and need.tasks > left):
            continue
        found = _find(occupants, need)
        if found is None:
            # What is free and what may be evicted only shrinks: it fits no later one either.
            hopeless.add(kind)
            continue
        evictions.append(_eviction(occupants, need, found, now))
        occupants.evict(found.units)
        occupants.take(need, found.counts)
        left -= need.tasks
    return evictions


def _kind_of(need: PreemptionRequest) -> tuple[object, ...]:
    parts = tuple(
        (part.shape.shape_id, part.count, *(flags.tobytes() for flags in part.usable))
        for part in need.parts
    )
    return need.is_new_job and need.job_id, parts


def _find(occupants: EvictionUnits, need: PreemptionRequest) -> EvictionPlan | None:
    if need.tasks == 1:
        founds = [find_one(occupants, need, usable) for usable in need.usable]
    else:
        ways = zip(*(part.usable for part in need.parts), strict=True)
        founds = [find_many(occupants, need, usable) for usable in ways]
    return min(
        (found for found in founds if found is not None),
        key=lambda found: found.rank,
        default=None,
    )


def _eviction(
    occupants: EvictionUnits, need: PreemptionRequest, found: EvictionPlan, now: datetime
) -> Eviction:
    units = found.units.tolist()
    places = sorted(found.counts)
    stop_seconds = max((occupants.stop_seconds[unit] for unit in units), default=0.0)
    return Eviction(
        need=need,
        group_ids=tuple(need.parts[part].group_id for part, _ in places),
        cell_ids=tuple(occupants.cells[place].cell_id for _, place in places),
        counts=tuple(found.counts[key] for key in places),
        victims=tuple(sorted(task for unit in units for task in occupants.tasks[unit])),
        until=now + timedelta(seconds=stop_seconds + NOMINATION_SECONDS),
    )
