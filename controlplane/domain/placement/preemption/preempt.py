"""Preemption: victims of lower bands, only if the preemptor then fits, and as few as possible.

Of all sets of victims that make room, the chosen one has, in this order:

1. fewest INTERACTIVE victims,
2. fewest BATCH victims,
3. least surplus: freed capacity beyond the shortage, as dominant share of the preemptor's cell; if
   a quota or token blocks, the surplus there is added, as share of its limit,
4. least running time lost, of all victims together,
5. the first cell by name.

So no victim is spare. A gang is evicted whole, on all cells, or not at all if one member must stay.
If a quota blocks, only attempts that count against it are victims.
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

# Time that a reservation outlasts the expected end of the last victim.
NOMINATION_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Eviction:
    """The victims of a preemption, and the preemptor's reservation `until` a time.

    `group_ids`, `cell_ids`, `counts`: number of tasks by group and cell, ordered by group, then by
    name of the cell. `victims`: ids of tasks, in order; empty if terminating attempts suffice.
    """

    need: PreemptionRequest
    group_ids: tuple[int, ...]
    cell_ids: tuple[int, ...]
    counts: tuple[int, ...]
    victims: tuple[int, ...]
    until: datetime

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Return group, cell and number of tasks."""
        return zip(self.group_ids, self.cell_ids, self.counts, strict=True)

    def shapes(self) -> dict[int, int]:
        """Return the shape of the tasks of each group: the members of a gang have one."""
        return {part.group_id: part.shape.shape_id for part in self.need.parts}


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
    """Return the evictions for `needs`, ordered by band and queue; impossible ones are omitted.

    `cells`: READY cells, by name. `free`: resources (`names`) x cells, capacity less unreleased
    attempts and reservations (so it may be negative). `running`: all attempts of the pool that have
    not ended, evictable or not. `leaving`: those that have ended and are not released.
    `allowances`: of every scope with a limit, and of the pool, if it has tokens.

    Each eviction is charged: no victim is used twice, and surplus is free for the next request. At
    most `limit` tasks get room unless a gang needs more at once.
    """
    candidates: EvictionUnits | None = None
    impossible = set[tuple[object, ...]]()
    evictions, left = list[Eviction](), limit
    for need in needs:
        if left <= 0:
            break
        if candidates is None:
            candidates = EvictionUnits(cells, names, free, running, leaving, allowances, now)
        kind = _kind_of(need)
        if kind in impossible or (evictions and need.tasks > left):
            continue
        found = _find(candidates, need)
        if found is None:
            # Free and evictable capacity only shrink: equal later requests do not fit either.
            impossible.add(kind)
            continue
        evictions.append(_eviction(candidates, need, found, now))
        candidates.evict(found.units)
        candidates.take(need, found.counts)
        left -= need.tasks
    return evictions


def _kind_of(need: PreemptionRequest) -> tuple[object, ...]:
    parts = tuple(
        (
            part.shape.shape_id,
            part.count,
            part.least,
            part.most,
            *(flags.tobytes() for flags in part.usable),
        )
        for part in need.parts
    )
    return need.is_new_job and need.job_id, parts


def _find(candidates: EvictionUnits, need: PreemptionRequest) -> EvictionPlan | None:
    if need.tasks == 1 and not need.others:
        founds = [find_one(candidates, need, usable) for usable in need.usable]
    else:
        ways = zip(*(part.usable for part in need.parts), strict=True)
        founds = [find_many(candidates, need, usable) for usable in ways]
    return min(
        (found for found in founds if found is not None),
        key=lambda found: found.rank,
        default=None,
    )


def _eviction(
    candidates: EvictionUnits, need: PreemptionRequest, found: EvictionPlan, now: datetime
) -> Eviction:
    units = found.units.tolist()
    places = sorted(found.counts)
    stop_seconds = max((candidates.stop_seconds[unit] for unit in units), default=0.0)
    return Eviction(
        need=need,
        group_ids=tuple(need.parts[part].group_id for part, _ in places),
        cell_ids=tuple(candidates.cells[place].cell_id for _, place in places),
        counts=tuple(found.counts[key] for key in places),
        victims=tuple(sorted(task for unit in units for task in candidates.tasks[unit])),
        until=now + timedelta(seconds=stop_seconds + NOMINATION_SECONDS),
    )
