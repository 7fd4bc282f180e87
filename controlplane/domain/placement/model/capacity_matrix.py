"""Capacity matrix: the cells of a pool, resources x cells; usage grows as tasks are placed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.constraints import is_met
from controlplane.domain.placement.model.interfaces import CellOffer, Matrix, Selector, Vector
from controlplane.domain.placement.model.shares import capacity_ranks
from controlplane.domain.placement.model.snapshot import CellFacts, ShapeFacts

Mask = NDArray[np.bool_]
# Numbers of a matrix requests x cells that are computed at once, to stay in the cache.
_AT_ONCE = 1 << 14

_PLENTY = int(np.iinfo(np.int32).max)


@dataclass(frozen=True, slots=True)
class FitFailure:
    """The reason why no cell fits a task now.

    `fitting`: cells with capacity, but without free start slots. `best`: the cell with the smallest
    relative shortage, `lacks`: its missing amounts. `ever`: some empty cell would fit,
    `but_for_kept`: some cell would fit without reserved capacity.
    """

    fitting: int
    best: int
    lacks: list[int]
    ever: bool
    but_for_kept: bool


class CapacityMatrix:
    """The READY cells of a pool, by name.

    `used` includes the reserved `kept`, and may exceed `capacity` by it. `tokens`: names of
    resources of the pool, which no cell has.
    """

    def __init__(
        self, cells: Sequence[CellFacts], shapes: Iterable[ShapeFacts], tokens: Iterable[str] = ()
    ) -> None:
        names = {name for cell in cells for name in cell.capacity}
        names |= {name for shape in shapes for name in shape.resources}
        self.cells = cells
        self.names = sorted(names - set(tokens))
        self.capacity = self._matrix([cell.capacity for cell in cells])
        self.used = self._matrix([cell.used for cell in cells])
        self.kept = np.zeros_like(self.used)
        slots = [_PLENTY if cell.start_slots is None else cell.start_slots for cell in cells]
        self.slots: Vector = np.array(slots, dtype=np.int64)
        self.index_of = {cell.cell_id: index for index, cell in enumerate(cells)}
        self._masks: dict[tuple[object, ...], Mask] = {}
        self._ranks: dict[tuple[object, ...], Vector] = {}
        self._most = np.maximum(self.capacity, 1).astype(np.float64)

    def _matrix(self, amounts: Sequence[Mapping[str, int]]) -> Matrix:
        values = [[amount.get(name, 0) for amount in amounts] for name in self.names]
        return np.array(values, dtype=np.int64).reshape(len(self.names), len(amounts))

    @property
    def total(self) -> Vector:
        """Return the total capacity of all cells, by resource."""
        return np.asarray(self.capacity.sum(axis=1))

    @cached_property
    def sizes(self) -> Vector:
        """Return the rank of each cell's total capacity."""
        return capacity_ranks(self.capacity)

    def vector(self, request: Mapping[str, int]) -> Vector:
        """Return `request` by resource, in the order of the matrix, without tokens."""
        return np.array([request.get(name, 0) for name in self.names], dtype=np.int64)

    def usable(self, shape: ShapeFacts) -> Mask:
        """Return the cells that may run tasks of the shape at all: task type, constraints, tags."""
        key = (shape.task_type, shape.constraints, shape.placement_tags)
        mask = self._masks.get(key)
        if mask is None:
            required = [item for item in shape.constraints if item.required]
            mask = self._masks[key] = np.array(
                [
                    shape.task_type in cell.task_types
                    and cell.tags.admit(shape.placement_tags)
                    and all(is_met(item, cell.labels) for item in required)
                    for cell in self.cells
                ],
                dtype=bool,
            )
        return mask

    def with_label(self, label: str) -> dict[str, Mask]:
        """Return the cells by value of the label, sorted by value."""
        masks: dict[str, Mask] = {}
        for index, cell in enumerate(self.cells):
            value = cell.labels.get(label)
            if value is not None:
                mask = masks.setdefault(value, np.zeros(len(self.cells), dtype=bool))
                mask[index] = True
        return dict(sorted(masks.items()))

    @property
    def free(self) -> Matrix:
        """Return the free capacity by resource and cell; negative if reservations exceed it."""
        return self.capacity - self.used

    def room(self, request: Vector, usable: Mask, *, at_once: bool = False) -> Vector:
        """Return how many tasks of `request` each usable cell can take now.

        `at_once`: the tasks start together, so start slots do not limit them; the cell queues them.
        """
        fits = self._fits(self.free, request)
        if not at_once:
            fits = np.minimum(fits, np.maximum(self.slots, 0))
        return np.where(usable, fits, 0)

    def has_room(self, request: Vector, usable: Mask) -> bool:
        """Return whether some usable cell can take a task of `request` now."""
        free = usable & (self.slots > 0)
        for index in request.nonzero()[0].tolist():
            free &= self.capacity[index] - self.used[index] >= request[index]
        return bool(free.any())

    def misfits(self, requests: Sequence[Vector], usable: Mask) -> list[FitFailure]:
        """Return why no usable cell fits one task of each of the requests.

        Vectorised over requests: there may be thousands of shapes without capacity.
        """
        cells = np.flatnonzero(usable)
        capacity, most = self.capacity[:, cells], self._most[:, cells]
        free = np.maximum(capacity - self.used[:, cells], 0)
        kept = free
        if self.kept.any():
            kept = np.maximum(capacity - self.used[:, cells] + self.kept[:, cells], 0)
        found, step = list[FitFailure](), max(_AT_ONCE // max(len(cells), 1), 1)
        for first in range(0, len(requests), step):
            requested = np.array(requests[first : first + step])
            distance = np.zeros((len(requested), len(cells)))
            ever = _covers(capacity, requested)
            # A request that fits on no empty cell is compared with the empty cells.
            has = free if ever.all() else np.where(ever[:, None], free[:, None], capacity[:, None])
            for index in np.flatnonzero(requested.any(axis=0)).tolist():
                lack = (requested[:, index, None] - has[index]) / most[index]
                np.maximum(distance, lack, out=distance)
            best = distance.argmin(axis=1)
            there = has[:, best] if has is free else has[:, np.arange(len(requested)), best]
            columns = (
                (distance <= 0).sum(axis=1).tolist(),
                cells[best].tolist(),
                np.maximum(requested - there.T, 0).tolist(),
                ever.tolist(),
                _covers(kept, requested).tolist() if kept is not free else [False] * len(requested),
            )
            found += map(FitFailure, *columns)
        return found

    def room_when_empty(self, request: Vector, usable: Mask) -> Vector:
        """Return how many tasks each usable cell could take if it were empty."""
        return np.where(usable, self._fits(self.capacity, request), 0)

    @staticmethod
    def _fits(free: Matrix, request: Vector) -> Vector:
        requested = request > 0
        if not requested.any():
            return np.full(free.shape[1], _PLENTY, dtype=np.int64)
        each = request[requested, None]
        fits = (free[requested] // each).min(axis=0, initial=_PLENTY)
        return np.maximum(fits, 0)

    def give(
        self,
        shape: ShapeFacts,
        wanted: int,
        usable: Mask,
        selector: Selector,
        start: int,
        *,
        at_once: bool = False,
    ) -> Vector | None:
        """Place up to `wanted` tasks of the shape; return the number by cell, or None if none fits.

        Cells that meet more preferred constraints are filled first. `at_once`: see `room`.
        """
        request = self.vector(shape.resources)
        room = self.room(request, usable, at_once=at_once)
        if not room.any():
            return None
        given = np.zeros_like(room)
        for level in self._levels(shape):
            here = room if level is None else np.where(level, room, 0)
            left = min(wanted - int(given.sum()), int(here.sum()))
            if left > 0:
                offer = CellOffer(self.capacity, self.used, request, here, self.sizes, start)
                given += np.maximum(np.minimum(selector.select(offer, left), here), 0)
        self.take(request, given)
        return given

    def take(self, request: Vector, given: Vector) -> None:
        """Charge `request` and a slot for each of `given` tasks by cell; negative: refund.

        Slots become negative if a gang is placed at once: the cell gets no other new task until it
        has prepared the members.
        """
        self.used += request[:, None] * given
        self.slots -= given

    def has_room_on(self, cell_id: int, request: Vector) -> bool:
        """Return whether that cell exists and has capacity for one such task now."""
        index = self.index_of.get(cell_id)
        if index is None:
            return False
        free = self.capacity[:, index] - self.used[:, index]
        return bool((request <= free)[request > 0].all())

    def only(self, cell_id: int) -> Mask:
        """Return a mask of that cell only."""
        here = np.zeros(len(self.cells), dtype=bool)
        here[self.index_of[cell_id]] = True
        return here

    def keep(self, cell_id: int, request: Vector, count: int) -> None:
        """Reserve capacity for `count` tasks on a cell, even beyond it; negative: release it."""
        self.used[:, self.index_of[cell_id]] += request * count
        self.kept[:, self.index_of[cell_id]] += request * count

    def save(self) -> tuple[Matrix, Matrix, Vector]:
        """Return a copy of the mutable columns."""
        return self.used.copy(), self.kept.copy(), self.slots.copy()

    def clear(self) -> None:
        """Empty all cells and drop all reservations."""
        self.used, self.kept = np.zeros_like(self.used), np.zeros_like(self.kept)

    def restore(self, saved: tuple[Matrix, Matrix, Vector]) -> None:
        """Restore the saved columns."""
        self.used, self.kept, self.slots = saved

    def _levels(self, shape: ShapeFacts) -> Sequence[Mask | None]:
        """Return the cells by number of met preferred constraints, descending; None: all cells."""
        preferred = tuple(item for item in shape.constraints if not item.required)
        if not preferred:
            return [None]
        ranks = self._ranks.get(preferred)
        if ranks is None:
            ranks = self._ranks[preferred] = np.array(
                [sum(is_met(item, cell.labels) for item in preferred) for cell in self.cells],
                dtype=np.int64,
            )
        return [ranks == rank for rank in sorted(set(ranks.tolist()), reverse=True)]


def _covers(amounts: Matrix, requests: Matrix) -> Mask:
    """Return for each of `requests` (requests x resources) whether some cell has enough."""
    covered = np.ones((len(requests), amounts.shape[1]), dtype=bool)
    for index in np.flatnonzero(requests.any(axis=0)).tolist():
        covered &= amounts[index] >= requests[:, index, None]
    return np.asarray(covered.any(axis=1))
