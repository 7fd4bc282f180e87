"""Place what waits in one pool: shape by shape, in order, each shape in one step over all cells.

The order of shapes is the snapshot's (band, then job, then group). A shape that does not fit is
skipped whole, with its reason, and does not hold up the shapes behind it (best effort).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.domain.effects import ExplainGroup, PlaceTasks
from controlplane.domain.placement.explain import explain_shape
from controlplane.domain.placement.selectors import dispersed
from controlplane.domain.snapshots import CellFacts, PendingShape, PlacementSnapshot


@dataclass(frozen=True, slots=True)
class Plan:
    """Where tasks go, and why the others wait. `complete`: everything that waits was looked at."""

    placements: PlaceTasks
    explanations: tuple[ExplainGroup, ...]
    complete: bool

    @property
    def count(self) -> int:
        """Tasks placed."""
        return sum(self.placements.counts)


class _Board:
    """The cells as matrices; `used` grows as tasks are placed."""

    def __init__(self, cells: Sequence[CellFacts], names: Sequence[str]) -> None:
        self.cells = cells
        self.names = names
        self.capacity = self._matrix([cell.capacity for cell in cells])
        self.used = self._matrix([cell.used for cell in cells])

    def _matrix(self, rows: Sequence[Mapping[str, int]]) -> dispersed.Matrix:
        values = [[row.get(name, 0) for name in self.names] for row in rows]
        return np.array(values, dtype=np.int64).reshape(len(rows), len(self.names))

    def vector(self, request: Mapping[str, int]) -> dispersed.Vector:
        return np.array([request.get(name, 0) for name in self.names], dtype=np.int64)

    def used_by_cell(self) -> list[dict[str, int]]:
        """What each cell holds now, what was placed in this pass included."""
        return [
            {name: int(amount) for name, amount in zip(self.names, row, strict=True)}
            for row in self.used
        ]

    def room(self, request: dispersed.Vector, usable: np.ndarray[Any, Any]) -> dispersed.Vector:
        """How many tasks of `request` each usable cell can still take."""
        return self._fits(self.capacity - self.used, request, usable)

    def room_when_empty(
        self, request: dispersed.Vector, usable: np.ndarray[Any, Any]
    ) -> dispersed.Vector:
        return self._fits(self.capacity, request, usable)

    @staticmethod
    def _fits(
        free: dispersed.Matrix, request: dispersed.Vector, usable: np.ndarray[Any, Any]
    ) -> dispersed.Vector:
        asked = request > 0
        if not asked.any():
            fits = np.full(len(free), np.iinfo(np.int32).max, dtype=np.int64)
        else:
            fits = np.maximum(free[:, asked], 0) // request[asked]
            fits = fits.min(axis=1, initial=np.iinfo(np.int32).max)
        return np.where(usable, fits, 0).astype(np.int64)


def place(snapshot: PlacementSnapshot, *, limit: int) -> Plan:
    """The plan for `snapshot`, of at most `limit` tasks."""
    names = sorted(
        {name for cell in snapshot.cells for name in cell.capacity}
        | {name for shape in snapshot.shapes for name in shape.resources}
    )
    board = _Board(snapshot.cells, names)
    groups, cells, counts, avoided = [], [], [], []
    explanations: dict[int, ExplainGroup] = {}
    misfits: dict[tuple[object, ...], dict[str, Any]] = {}
    left = limit
    for shape in snapshot.shapes:
        if left <= 0:
            break
        key = (tuple(sorted(shape.resources.items())), shape.task_type, shape.avoid_cell_id)
        wanted = min(shape.count, left)
        given = None if key in misfits else _place_shape(board, shape, wanted)
        placed = 0
        if given is not None:
            for index in np.flatnonzero(given):
                groups.append(shape.group_id)
                cells.append(snapshot.cells[index].cell_id)
                counts.append(int(given[index]))
                avoided.append(shape.avoid_cell_id)
            placed = int(given.sum())
        left -= placed
        if placed < wanted:
            if key not in misfits:
                misfits[key] = explain_shape(shape, snapshot, board.used_by_cell())
            explanations[shape.group_id] = ExplainGroup(shape.group_id, misfits[key])
    news = tuple(
        explanations[shape.group_id]
        for shape in snapshot.shapes
        if shape.group_id in explanations and shape.reason != explanations[shape.group_id].reason
    )
    plan = PlaceTasks(groups, cells, counts, avoided)
    return Plan(plan, news, complete=left > 0)


def _place_shape(board: _Board, shape: PendingShape, wanted: int) -> dispersed.Vector | None:
    if not board.cells:
        return None
    request = board.vector(shape.resources)
    usable = np.array([shape.task_type in cell.task_types for cell in board.cells], dtype=bool)
    if shape.avoid_cell_id is not None:
        others = usable & np.array([c.cell_id != shape.avoid_cell_id for c in board.cells])
        # Where no other cell could ever take it, the avoided one is better than none.
        if board.room_when_empty(request, others).any():
            usable = others
    given = dispersed.select(
        board.capacity, board.used, request, board.room(request, usable), wanted
    )
    board.used += given[:, None] * request
    return given
