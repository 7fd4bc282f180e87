"""Preemption candidates of a pool as columns, with the capacity that their eviction frees.

A *unit* is evicted whole: one attempt, or all members of a gang. The freed and the taken capacity
of each eviction is charged here, for the next request of the same pass.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.model.interfaces import Matrix, Vector
from controlplane.domain.placement.model.snapshot import (
    CellFacts,
    EvictableAttempt,
    ReleasingCapacity,
    ShapeFacts,
)
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.domain.state.states import Band

Flags = NDArray[np.bool_]

RUNNING_TASKS = "running_tasks"
RUNNING_JOBS = "running_jobs"

_VICTIM_BANDS = (Band.INTERACTIVE, Band.BATCH)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of a scope, and the rest of them; `scope` None: the tokens of the pool.

    By name of a resource, "running_tasks" or "running_jobs"; other names have no limit. `free`:
    after terminating attempts ended and nominated tasks were placed; negative: limit exceeded.
    """

    scope: Scope | None
    limits: Mapping[str, int]
    free: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PreemptionRequest:
    """A request for room: for one task of a row, or `count` tasks that must be placed together.

    `usable`: masks of usable cells; all tasks are placed within one of them (one for each value of
    a gang's `group_by`). `is_new_job`: its job has no running tasks. `others`: the other rows of a
    gang, to be placed at once with it, with masks for the same values. Another split of the tasks
    of all rows is as good with at least `least` tasks of each group, and at most `most` of each row
    (None: `count`).
    """

    shape: ShapeFacts
    group_id: int
    job_id: int
    count: int
    usable: tuple[Flags, ...]
    is_new_job: bool = False
    least: int = 0
    most: int | None = None
    others: tuple["PreemptionRequest", ...] = ()

    @property
    def parts(self) -> tuple["PreemptionRequest", ...]:
        """Return all rows."""
        return (self, *self.others)

    @property
    def tasks(self) -> int:
        """Return the number of tasks of all rows."""
        return sum(part.count for part in self.parts)


@dataclass(frozen=True, slots=True)
class Shortage:
    """The shortage of one allowance: `amounts` by name, each above 0."""

    scope: Scope | None
    amounts: Mapping[str, int]
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EvictableCapacity:
    """Capacity that could be evicted, by row: in all, and the maximum of one unit.

    By the band of the unit: INTERACTIVE and BATCH.
    """

    interactive: Matrix
    batch: Matrix
    largest_interactive: Matrix
    largest_batch: Matrix

    @property
    def total(self) -> Matrix:
        """Return the sum of both bands."""
        return self.interactive + self.batch

    def by_band(self) -> tuple[tuple[Matrix, Band], ...]:
        """Return the largest amounts, of the less important band first."""
        return (self.largest_batch, Band.BATCH), (self.largest_interactive, Band.INTERACTIVE)

    def least_units(self, lacks: Matrix) -> tuple[Vector, Vector]:
        """Return a lower bound of INTERACTIVE and BATCH units that cover `lacks`, by row.

        The bound of BATCH units is 0 where an INTERACTIVE one is needed.
        """
        left = np.maximum(lacks - self.batch, 0)
        first = (-(-left // np.maximum(self.largest_interactive, 1))).max(axis=1, initial=0)
        second = (-(-lacks // np.maximum(self.largest_batch, 1))).max(axis=1, initial=0)
        return first, np.where(first == 0, second, 0)

    def load(self, lacks: Matrix) -> NDArray[np.float64]:
        """Return an estimate of the units that cover `lacks`, by row: a multiple of the largest."""
        largest = np.maximum(self.largest_interactive, self.largest_batch)
        shares: NDArray[np.float64] = (lacks / np.maximum(largest, 1)).max(axis=1, initial=0)
        return shares


class EvictionUnits:
    """The units that could be evicted, and the free capacity of every cell and scope.

    By unit, in order of their first task's id: `tasks` (ids), `band`, `victims` (INTERACTIVE and
    BATCH tasks), `ages` (sum in microseconds), `stop_seconds` (of the slowest), `job`.
    By entry (a unit on a cell, in order of cell): `entry_unit`, `entry_cell`, `entry_frees`.
    By cell x resource: `capacity`, `free`.
    """

    def __init__(
        self,
        cells: Sequence[CellFacts],
        names: Sequence[str],
        free: Matrix,
        running: Iterable[EvictableAttempt],
        leaving: Iterable[ReleasingCapacity],
        allowances: Sequence[Allowance],
        now: datetime,
    ) -> None:
        self.cells = cells
        self.names = list(names)
        self.place_of = {cell.cell_id: place for place, cell in enumerate(cells)}
        self._allowances = {item.scope: item for item in allowances}
        self._free_of = {
            item.scope: {name: item.free.get(name, 0) for name in item.limits}
            for item in allowances
        }
        self._jobs = set[int]()
        limited = sorted({name for item in allowances for name in item.limits} - set(names))
        self.columns = {name: place for place, name in enumerate([*names, *limited])}
        self.capacity = self._matrix(cell.capacity for cell in cells)
        self.free = np.array(free, dtype=np.int64).T.copy()
        for item in leaving:
            if item.cell_id in self.place_of:
                self.free[self.place_of[item.cell_id]] += self._vector(item.resources)
        self._read_units(sorted(running, key=lambda item: item.task_id), now)
        self.is_gone: Flags = np.zeros(len(self.tasks), dtype=bool)
        self.held = np.zeros((len(_VICTIM_BANDS), *self.free.shape), dtype=np.int64)
        self.largest = np.zeros_like(self.held)
        where = (self.band[self.entry_unit] - _VICTIM_BANDS[0], self.entry_cell)
        np.add.at(self.held, where, self.entry_frees)
        np.maximum.at(self.largest, where, self.entry_frees)

    # ------------------------------------------------------------------------------- reading

    def _vector(self, amounts: Mapping[str, int]) -> Vector:
        return np.array([amounts.get(name, 0) for name in self.names], dtype=np.int64)

    def _matrix(self, rows: Iterable[Mapping[str, int]]) -> Matrix:
        values = [[row.get(name, 0) for name in self.names] for row in rows]
        return np.array(values, dtype=np.int64).reshape(len(values), len(self.names))

    def _read_units(self, running: Sequence[EvictableAttempt], now: datetime) -> None:
        members: dict[tuple[str, int], list[EvictableAttempt]] = defaultdict(list)
        for item in running:
            key = ("task", item.task_id) if item.gang is None else ("gang", item.gang)
            members[key].append(item)
        units, self._staying = list[list[EvictableAttempt]](), set[int]()
        for unit in members.values():
            # A gang is evicted whole: one member that must stay keeps all members.
            if all(item.is_evictable and item.band in _VICTIM_BANDS for item in unit):
                units.append(unit)
            else:
                self._staying.update(item.job_id for item in unit)
        self.tasks = [tuple(item.task_id for item in unit) for unit in units]
        self.band = _column(min(item.band for item in unit) for unit in units)
        bands = [[item.band for item in unit] for unit in units]
        self.victims = np.array(
            [[unit.count(band) for band in _VICTIM_BANDS] for unit in bands], dtype=np.int64
        ).reshape(len(units), len(_VICTIM_BANDS))
        self.ages = _column(
            sum((now - item.began_at) // _MICROSECOND for item in unit) for unit in units
        )
        self.stop_seconds = [max(item.stop_seconds for item in unit) for unit in units]
        self.job = _column(unit[0].job_id for unit in units)
        self._keys = {
            ScopeKind.USER: _column(unit[0].owner_id for unit in units),
            ScopeKind.PROJECT: _column(unit[0].project_id for unit in units),
            ScopeKind.DOMAIN: _column(unit[0].domain_id for unit in units),
        }
        self._read_entries(units)

    def _read_entries(self, units: Sequence[Sequence[EvictableAttempt]]) -> None:
        """Compute the amounts that each unit frees: on each cell, and in all."""
        known = dict[int, Vector]()  # attempts of one shape usually share their mapping
        self.total = np.zeros((len(units), len(self.columns)), dtype=np.int64)
        entries: dict[tuple[int, int], Vector] = {}
        for index, unit in enumerate(units):
            for item in unit:
                amounts = known.get(id(item.resources))
                if amounts is None:
                    row = [item.resources.get(name, 0) for name in self.columns]
                    amounts = known[id(item.resources)] = np.array(row, dtype=np.int64)
                self.total[index] += amounts
                place = self.place_of.get(item.cell_id)
                if place is not None:
                    here = amounts[: len(self.names)]
                    entry = entries.get((place, index))
                    entries[place, index] = here if entry is None else entry + here
        order = sorted(entries)
        self.entry_cell = _column(place for place, _ in order)
        self.entry_unit = _column(index for _, index in order)
        shape = (len(order), len(self.names))
        frees = np.array([entries[key] for key in order], dtype=np.int64).reshape(shape)
        self.entry_frees = np.asfortranarray(frees)  # read resource by resource
        self._starts = np.searchsorted(self.entry_cell, np.arange(len(self.cells) + 1))
        self._by_unit = np.argsort(self.entry_unit, kind="stable")
        sorted_units = self.entry_unit[self._by_unit]
        self._unit_starts = np.searchsorted(sorted_units, np.arange(len(units) + 1))

    def _sum_up(self, place: int) -> None:
        """Compute the amounts that units of each band hold on a cell: the sum and the largest."""
        rows = self.entries_on(place)
        rows = rows[~self.is_gone[self.entry_unit[rows]]]
        bands = self.band[self.entry_unit[rows]]
        for index, band in enumerate(_VICTIM_BANDS):
            frees = self.entry_frees[rows[bands == band]]
            self.held[index, place] = frees.sum(axis=0)
            self.largest[index, place] = frees.max(axis=0, initial=0)

    # ------------------------------------------------------------------------------- queries

    def request_of(self, shape: ShapeFacts) -> Vector | None:
        """Return the request of one task; None: it needs a resource that no cell has."""
        tokens = self._allowances[None].limits if None in self._allowances else {}
        requested = {name for name, amount in shape.resources.items() if amount > 0}
        return self._vector(shape.resources) if requested <= {*self.names, *tokens} else None

    def entries_on(self, place: int) -> Vector:
        """Return the entries of a cell."""
        return np.arange(self._starts[place], self._starts[place + 1])

    def entries_of(self, units: Vector) -> Vector:
        """Return the entries of some units."""
        spans = zip(self._unit_starts[units], self._unit_starts[units + 1], strict=True)
        found = [self._by_unit[start:end] for start, end in spans]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def below(self, band: Band) -> Flags:
        """Return the units that may be evicted for `band`: of lower bands, not yet evicted."""
        return np.asarray((self.band > band) & ~self.is_gone)

    def evictable(self, band: Band) -> EvictableCapacity:
        """Return the capacity of each cell that `band` may evict."""
        zero = np.zeros_like(self.free)
        interactive, batch = (victims > band for victims in _VICTIM_BANDS)
        return EvictableCapacity(
            self.held[0] if interactive else zero,
            self.held[1] if batch else zero,
            self.largest[0] if interactive else zero,
            self.largest[1] if batch else zero,
        )

    def missing(self, requested: Sequence[tuple[PreemptionRequest, int]]) -> list[Shortage]:
        """Return the shortages of quotas and tokens for these (group, tasks) of one job."""
        demand, found = self._demand(requested), []
        for scope in (None, *requested[0][0].shape.scopes()):
            free = self._free_of.get(scope, {})
            amounts = {
                name: demand[name] - free[name]
                for name in sorted(free)
                if demand.get(name, 0) > max(free[name], 0)
            }
            if amounts:
                found.append(Shortage(scope, amounts, self._allowances[scope].limits))
        return found

    def _demand(self, requested: Sequence[tuple[PreemptionRequest, int]]) -> dict[str, int]:
        demand: dict[str, int] = defaultdict(int)
        for need, count in requested:
            for name, amount in need.shape.resources.items():
                demand[name] += amount * count
        demand[RUNNING_TASKS] = sum(count for _, count in requested)
        job = requested[0][0]
        demand[RUNNING_JOBS] = int(job.is_new_job and job.job_id not in self._jobs)
        return demand

    def frees_of(self, item: Shortage, name: str) -> Vector:
        """Return how much each unit frees of one name of an allowance; 0 of "running_jobs"."""
        if name == RUNNING_JOBS:
            amounts = np.zeros(len(self.tasks), dtype=np.int64)
        elif name == RUNNING_TASKS:
            amounts = self.victims.sum(axis=1)
        else:
            amounts = self.total[:, self.columns[name]]
        return np.where(self._is_of(item.scope), amounts, 0)

    def jobs_in(self, scope: Scope | None, units: Flags) -> dict[int, Vector]:
        """Return the units of each job in the scope of which all units are in `units`."""
        here = np.flatnonzero(self._is_of(scope) & ~self.is_gone)
        jobs: dict[int, list[int]] = defaultdict(list)
        for index in here.tolist():
            jobs[int(self.job[index])].append(index)
        return {
            job: np.array(indices, dtype=np.int64)
            for job, indices in jobs.items()
            if job not in self._staying and units[indices].all()
        }

    def _is_of(self, scope: Scope | None) -> Flags:
        if scope is None:
            return np.ones(len(self.tasks), dtype=bool)
        return np.asarray(self._keys[scope.kind] == scope.key)

    # ------------------------------------------------------------------------------- changes

    def fork(self) -> Self:
        """Return a copy for trials."""
        other = copy.copy(self)
        other.free, other.held = self.free.copy(), self.held.copy()
        other.largest, other.is_gone = self.largest.copy(), self.is_gone.copy()
        other._free_of = {scope: dict(free) for scope, free in self._free_of.items()}
        other._jobs = set(self._jobs)
        return other

    def evict(self, units: Vector) -> None:
        """Evict the units: the amounts that they hold become free."""
        scopes = [scope for scope in self._scopes_of(units) if scope in self._free_of]
        jobs_before = {scope: self._jobs_of(scope) for scope in scopes}
        self.is_gone[units] = True
        rows = self.entries_of(units)
        np.add.at(self.free, self.entry_cell[rows], self.entry_frees[rows])
        for place in np.unique(self.entry_cell[rows]).tolist():
            self._sum_up(place)
        for scope in scopes:
            free, here = self._free_of[scope], units[self._is_of(scope)[units]]
            for name in free:
                if name == RUNNING_JOBS:
                    free[name] += len(jobs_before[scope] - self._jobs_of(scope))
                elif name == RUNNING_TASKS:
                    free[name] += int(self.victims[here].sum())
                else:
                    free[name] += int(self.total[here, self.columns[name]].sum())

    def _scopes_of(self, units: Vector) -> list[Scope | None]:
        keys = ((kind, np.unique(column[units])) for kind, column in self._keys.items())
        return [None, *(Scope(kind, key) for kind, found in keys for key in found.tolist())]

    def _jobs_of(self, scope: Scope | None) -> set[int]:
        if RUNNING_JOBS not in self._free_of[scope]:
            return set()
        return set(self.job[self._is_of(scope) & ~self.is_gone].tolist()) - self._staying

    def take(self, need: PreemptionRequest, counts: Mapping[tuple[int, int], int]) -> None:
        """Charge tasks of the request to cells: `counts` by part and place."""
        parts, tasks = need.parts, [0] * len(need.parts)
        for (part, place), count in counts.items():
            self.free[place] -= self._vector(parts[part].shape.resources) * count
            tasks[part] += count
        demand = self._demand([*zip(parts, tasks, strict=True)])
        for scope in (None, *need.shape.scopes()):
            free = self._free_of.get(scope, {})
            for name in free:
                free[name] -= demand.get(name, 0)
        self._jobs.add(need.job_id)


def _column(values: Iterable[int]) -> Vector:
    return np.array(list(values), dtype=np.int64)
