"""Shortfall of a request in quotas and tokens, and the amounts that units free of it."""

from collections.abc import Sequence

import numpy as np

from controlplane.domain.placement.model.interfaces import Matrix, Vector
from controlplane.domain.placement.preemption.candidates import (
    RUNNING_JOBS,
    EvictableCapacity,
    EvictionUnits,
    Flags,
    Shortage,
)
from controlplane.domain.state.states import Band


class Shortfall:
    """The shortfall as dimensions, one for each name of each blocking scope.

    `amounts`, `limits`: by dimension; `frees`: units x dimensions, 0 for units that may not be
    evicted; `parts`: the dimensions of each scope; `involved`: the units that free a part of it.
    `bundle`: by unit, equal for units of a job that must be evicted whole.
    """

    # By dimension of running jobs: the number of each unit's job, and its count of units.
    _jobs: dict[int, tuple[Vector, Vector]]

    def __init__(
        self, candidates: EvictionUnits, missing: Sequence[Shortage], is_open: Flags
    ) -> None:
        units = len(candidates.tasks)
        self.bundle = np.arange(units)
        self.parts: list[slice] = []
        self._jobs = {}
        columns, amounts, limits = list[Vector](), list[int](), list[int]()
        for item in missing:
            first = len(amounts)
            for name, amount in item.amounts.items():
                column = np.where(is_open, candidates.frees_of(item, name), 0)
                if name == RUNNING_JOBS:
                    jobs = [*candidates.jobs_in(item.scope, is_open).values()]
                    number = np.full(units, len(jobs), dtype=np.int64)
                    for index, job in enumerate(jobs):
                        self.bundle[job], number[job] = job[0], index
                        column[job[0]] = 1
                    self._jobs[len(amounts)] = number, np.array([len(job) for job in jobs])
                columns.append(column)
                amounts.append(amount)
                limits.append(item.limits[name])
            self.parts.append(slice(first, len(amounts)))
        self.amounts = np.array(amounts, dtype=np.int64)
        self.limits = np.array(limits, dtype=np.int64)
        self.frees: Matrix = np.array(columns, dtype=np.int64).reshape(len(amounts), units).T
        self._together = np.zeros_like(self.frees)
        np.add.at(self._together, self.bundle, self.frees)
        self.involved = np.flatnonzero(is_open & (self._together[self.bundle] > 0).any(axis=1))

    @property
    def has_bundles(self) -> bool:
        """Return whether some units must be evicted together with others."""
        return bool(self._jobs)

    def freed(self, units: Vector) -> Vector:
        """Return the amounts by dimension that the eviction of `units` frees."""
        freed = np.asarray(self.frees[units].sum(axis=0))
        for dimension, (number, sizes) in self._jobs.items():
            gone = np.bincount(number[units], minlength=len(sizes) + 1)[: len(sizes)]
            freed[dimension] = (gone == sizes).sum()
        return freed

    def is_curable(self) -> bool:
        """Return whether the eviction of all candidates frees enough."""
        return bool((self.frees.sum(axis=0) >= self.amounts).all())

    def least_units(self, candidates: EvictionUnits) -> tuple[int, int]:
        """Return a lower bound of INTERACTIVE and BATCH units that free enough."""
        frees = self._together
        is_batch = (candidates.band == Band.BATCH)[:, None]
        batch, interactive = np.where(is_batch, frees, 0), np.where(is_batch, 0, frees)
        rows = [
            part[None, :]
            for part in (
                interactive.sum(axis=0),
                batch.sum(axis=0),
                interactive.max(axis=0, initial=0),
                batch.max(axis=0, initial=0),
            )
        ]
        first, second = EvictableCapacity(*rows).least_units(self.amounts[None, :])
        return int(first[0]), int(second[0])
