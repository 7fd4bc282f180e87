"""The cells of a pool as matrices, resources x cells; what is used grows as tasks are placed."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.constraints import is_met
from controlplane.domain.placement.interfaces import Matrix, Offer, Selector, Vector
from controlplane.domain.placement.snapshot import CellFacts, ShapeFacts

Mask = NDArray[np.bool_]

_PLENTY = int(np.iinfo(np.int32).max)


class Board:
    """The READY cells of a pool, by name. `used` may exceed `capacity`: by what is `kept` of it.

    `tokens`: names that no cell has, since they belong to the pool.
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
        """What all cells have together, by resource."""
        return np.asarray(self.capacity.sum(axis=1))

    def vector(self, request: Mapping[str, int]) -> Vector:
        """`request` by resource, in the board's order; tokens are left out."""
        return np.array([request.get(name, 0) for name in self.names], dtype=np.int64)

    def usable(self, shape: ShapeFacts) -> Mask:
        """The cells that may run tasks of the shape at all: task type, constraints, tags."""
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
        """By value of the label, the cells that have it; values in order."""
        masks: dict[str, Mask] = {}
        for index, cell in enumerate(self.cells):
            value = cell.labels.get(label)
            if value is not None:
                mask = masks.setdefault(value, np.zeros(len(self.cells), dtype=bool))
                mask[index] = True
        return dict(sorted(masks.items()))

    def room(self, request: Vector, usable: Mask) -> Vector:
        """How many tasks of `request` each usable cell can take just now."""
        fits = np.minimum(self._fits(self.capacity - self.used, request), self.slots)
        return np.where(usable, fits, 0)

    def has_room(self, request: Vector, usable: Mask) -> bool:
        """Whether some usable cell can take a task of `request` just now."""
        return bool((self.fitting(request, usable) & (self.slots > 0)).any())

    def fitting(self, request: Vector, usable: Mask) -> Mask:
        """The usable cells with room, if cells could prepare any number of containers at once."""
        return usable & _covers(self.capacity - self.used, request)

    def could_ever_fit(self, request: Vector, usable: Mask) -> bool:
        """Whether some usable cell could take a task if it held nothing."""
        return bool((usable & _covers(self.capacity, request)).any())

    def has_room_but_for_kept(self, request: Vector, usable: Mask) -> bool:
        """Whether some usable cell could, if no room were kept for anybody."""
        free = self.capacity - self.used + self.kept
        return bool((usable & _covers(free, request)).any())

    def closest(self, request: Vector, usable: Mask) -> tuple[int, Vector]:
        """The usable cell that lacks the least share of what it has, and what it lacks."""
        lacks = np.maximum(request[:, None] - np.maximum(self.capacity - self.used, 0), 0)
        distance = (lacks / self._most).max(axis=0, initial=0.0)
        best = int(np.where(usable, distance, np.inf).argmin())
        return best, lacks[:, best]

    def room_when_empty(self, request: Vector, usable: Mask) -> Vector:
        """How many each usable cell could take if it held nothing."""
        return np.where(usable, self._fits(self.capacity, request), 0)

    @staticmethod
    def _fits(free: Matrix, request: Vector) -> Vector:
        asked = request > 0
        if not asked.any():
            return np.full(free.shape[1], _PLENTY, dtype=np.int64)
        each = request[asked, None]
        fits = (np.maximum(free[asked], 0) // each).min(axis=0, initial=_PLENTY)
        return np.asarray(fits, dtype=np.int64)

    def give(
        self, shape: ShapeFacts, wanted: int, usable: Mask, selector: Selector, start: int
    ) -> Vector | None:
        """Place up to `wanted` tasks of the shape: how many on each cell. None: not one.

        Cells that meet more of what the shape prefers are filled first.
        """
        request = self.vector(shape.resources)
        room = self.room(request, usable)
        if not room.any():
            return None
        given = np.zeros_like(room)
        for level in self._levels(shape):
            here = np.where(level, room, 0)
            left = min(wanted - int(given.sum()), int(here.sum()))
            if left > 0:
                offer = Offer(self.capacity, self.used, request, here, start)
                given += np.clip(selector.select(offer, left), 0, here)
        self.take(request, given)
        return given

    def take(self, request: Vector, given: Vector) -> None:
        """`given` tasks on each cell now hold `request` and a slot each; negative: gives back."""
        self.used += request[:, None] * given
        self.slots -= given

    def keep(self, cell_id: int, request: Vector, count: int) -> None:
        """Keep room for `count` tasks on a cell, be it free or not; negative: give it back."""
        self.used[:, self.index_of[cell_id]] += request * count
        self.kept[:, self.index_of[cell_id]] += request * count

    def save(self) -> tuple[Matrix, Matrix, Vector]:
        """What moves, as it is now."""
        return self.used.copy(), self.kept.copy(), self.slots.copy()

    def restore(self, saved: tuple[Matrix, Matrix, Vector]) -> None:
        """Go back to what was saved."""
        self.used, self.kept, self.slots = saved

    def _levels(self, shape: ShapeFacts) -> list[Mask]:
        """The cells by how many preferred constraints they meet, the most first."""
        preferred = tuple(item for item in shape.constraints if not item.required)
        if not preferred:
            return [np.ones(len(self.cells), dtype=bool)]
        ranks = self._ranks.get(preferred)
        if ranks is None:
            ranks = self._ranks[preferred] = np.array(
                [sum(is_met(item, cell.labels) for item in preferred) for cell in self.cells],
                dtype=np.int64,
            )
        return [ranks == rank for rank in sorted(set(ranks.tolist()), reverse=True)]


def _covers(amounts: Matrix, request: Vector) -> Mask:
    covered = np.ones(amounts.shape[1], dtype=bool)
    for index in request.nonzero()[0].tolist():
        covered &= amounts[index] >= request[index]
    return covered
