"""Place what waits in one pool: shape by shape, in order, each shape in one step over all cells.

The order of shapes is the snapshot's (band, then job, then group). A shape that does not fit is
skipped whole, with its reason, and does not hold up the shapes behind it (best effort). Of a gang
the minima are placed at once or not at all (Volcano: gang), the rest as it comes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.domain.effects import ExplainGroup, PlaceTasks
from controlplane.domain.gangs import missing
from controlplane.domain.placement.explain import explain_gang, explain_shape
from controlplane.domain.placement.selectors import dispersed
from controlplane.domain.snapshots import CellFacts, GangFacts, PendingShape, PlacementSnapshot


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


_Given = tuple[PendingShape, dispersed.Vector]


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


class _Pass:
    """One pass over the shapes: what was given to whom, and why the others wait."""

    def __init__(self, snapshot: PlacementSnapshot, limit: int) -> None:
        names = sorted(
            {name for cell in snapshot.cells for name in cell.capacity}
            | {name for shape in snapshot.shapes for name in shape.resources}
        )
        self.snapshot = snapshot
        self.board = _Board(snapshot.cells, names)
        self.left = limit
        self.given: list[_Given] = []
        self.explanations: dict[int, ExplainGroup] = {}
        self._misfits: dict[tuple[object, ...], dict[str, Any]] = {}
        self._waiting_gangs: dict[tuple[object, ...], dict[str, Any]] = {}

    def place(self, shape: PendingShape, count: int) -> int:
        """Place up to `count` tasks of `shape`; how many. The rest have their reason."""
        wanted = min(count, self.left)
        key = _kind_of(shape)
        given = None if key in self._misfits else _place_shape(self.board, shape, wanted)
        placed = 0 if given is None else int(given.sum())
        if given is not None and placed:
            self.given.append((shape, given))
        self.left -= placed
        if placed < wanted:
            if key not in self._misfits:
                used = self.board.used_by_cell()
                self._misfits[key] = explain_shape(shape, self.snapshot, used)
            self.explain(shape.group_id, self._misfits[key])
        return placed

    def place_gang(self, gang: GangFacts, shapes: Sequence[PendingShape]) -> Sequence[int]:
        """Place what the gang's minima need, whole or not at all; how many of each of `shapes`."""
        needs = dict(zip(gang.group_ids, missing(gang.groups, gang.min_available), strict=True))
        need = sum(needs.values())
        # Of gangs that are alike the first tells for all: the room only shrinks.
        place_of = {group_id: place for place, group_id in enumerate(gang.group_ids)}
        members = ((place_of[shape.group_id], shape.count, _kind_of(shape)) for shape in shapes)
        kind = (*needs.values(), *members)
        reason = self._waiting_gangs.get(kind)
        if reason is None:
            counts, reason = self._try_gang(needs, need, shapes)
            if reason is None:
                return counts
            self._waiting_gangs[kind] = reason
        for shape in shapes:
            self.explain(shape.group_id, reason)
        return ()

    def _try_gang(
        self, needs: dict[int, int], need: int, shapes: Sequence[PendingShape]
    ) -> tuple[Sequence[int], dict[str, Any] | None]:
        """How many of each of `shapes` were placed, or why none; `needs`: by group, used up."""
        used, given = self.board.used.copy(), []
        counts = [0] * len(shapes)
        hindrance: dict[str, Any] | None = None
        for index, shape in enumerate(shapes):
            wanted = min(needs[shape.group_id], shape.count)
            if not wanted or hindrance is not None:
                continue
            found = _place_shape(self.board, shape, wanted)
            counts[index] = 0 if found is None else int(found.sum())
            needs[shape.group_id] -= counts[index]
            if found is not None:
                given.append((shape, found))
            if counts[index] < wanted:
                used_now = self.board.used_by_cell()
                hindrance = explain_shape(shape, self.snapshot, used_now)
        if not any(needs.values()):
            self.given += given
            self.left -= need
            return counts, None
        self.board.used = used
        return (), explain_gang(need, sum(counts), hindrance)

    def explain(self, group_id: int, reason: dict[str, Any]) -> None:
        self.explanations[group_id] = ExplainGroup(group_id, reason)


def place(snapshot: PlacementSnapshot, *, limit: int) -> Plan:
    """The plan for `snapshot`, of at most `limit` tasks, but for a gang that needs more at once."""
    now = _Pass(snapshot, limit)
    gang_shapes: dict[int, list[PendingShape]] = defaultdict(list)
    for shape in snapshot.shapes:
        if shape.job_id in snapshot.gangs:
            gang_shapes[shape.job_id].append(shape)
    for shape in snapshot.shapes:
        if now.left <= 0:
            break
        if shape.job_id not in snapshot.gangs:
            now.place(shape, shape.count)
            continue
        # The whole gang, when its first shape has its turn.
        shapes = gang_shapes.pop(shape.job_id, [])
        placed = now.place_gang(snapshot.gangs[shape.job_id], shapes) if shapes else ()
        for member, count in zip(shapes, placed, strict=False):
            if now.left > 0 and member.count > count:
                now.place(member, member.count - count)
    news = tuple(
        now.explanations[group_id]
        for group_id, reason in {s.group_id: s.reason for s in snapshot.shapes}.items()
        if group_id in now.explanations and reason != now.explanations[group_id].reason
    )
    return Plan(_placements(now), news, complete=now.left > 0)


def _kind_of(shape: PendingShape) -> tuple[object, ...]:
    """What is the same for shapes that fit the same cells."""
    return tuple(sorted(shape.resources.items())), shape.task_type, shape.avoid_cell_id


def _placements(done: _Pass) -> PlaceTasks:
    groups, cells, counts, avoided = [], [], [], []
    for shape, given in done.given:
        for index in np.flatnonzero(given):
            groups.append(shape.group_id)
            cells.append(done.snapshot.cells[index].cell_id)
            counts.append(int(given[index]))
            avoided.append(shape.avoid_cell_id)
    return PlaceTasks(groups, cells, counts, avoided)


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
