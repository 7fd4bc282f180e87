"""Result of a pass: columns of placements, reasons, rejections, and preemption candidates."""

from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.placement.cycle.quota_usage import QuotaAccounting
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix, Mask
from controlplane.domain.placement.model.interfaces import Vector
from controlplane.domain.placement.model.snapshot import PendingRows, PoolSnapshot, ShapeFacts
from controlplane.domain.state.effects import ExplainGroup, ExplainShape, PlaceTasks, RejectGroup


@dataclass(frozen=True, slots=True)
class UnplacedRow:
    """`count` unplaced tasks of a row for which some cell is large enough.

    `usable`: the cells that may take them; of several such sets, all tasks go within one.
    `is_gang`: all of them at once, together with `others`, the gang's other rows. Any other split
    of the same number of tasks is as good if it meets the minima: `least` tasks of the row's group,
    at most `most` of each row (None: `count`). `lacks_room`: neither quotas nor tokens prevent the
    placement.
    """

    row: int
    shape: ShapeFacts
    count: int
    usable: tuple[Mask, ...]
    is_gang: bool = False
    least: int = 0
    most: int | None = None
    lacks_room: bool = True
    is_new_job: bool = False
    others: "tuple[UnplacedRow, ...]" = ()


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Placements, and reasons of the other tasks.

    `shapes`, `groups`: changed reasons. `explained`: all shapes with a reason that the pass set or
    cleared. `complete`: all waiting rows were considered. `cursor`: the cell that got the last
    task. `board`, `usage`: capacity matrix and quota usage after the pass, including reservations
    of tasks that still wait.
    """

    placements: PlaceTasks
    shapes: tuple[ExplainShape, ...]
    explained: frozenset[int]
    groups: tuple[ExplainGroup, ...]
    rejected: tuple[RejectGroup, ...]
    unplaced: tuple[UnplacedRow, ...]
    complete: bool
    cursor: str
    board: CapacityMatrix
    usage: QuotaAccounting

    @property
    def count(self) -> int:
        """Return the number of placed tasks."""
        return sum(self.placements.counts)


@dataclass(slots=True)
class PlacementCounts:
    """Placed tasks: `row_counts` of `rows` and `cell_counts` of `cells`, with equal sums."""

    rows: Vector
    row_counts: Vector
    cells: Vector
    cell_counts: Vector


@dataclass(slots=True)
class PlacementColumns:
    """Collector of placements as columns."""

    waiting: PendingRows
    snapshot: PoolSnapshot
    collected: list[PlacementCounts] = field(default_factory=list)

    def add(self, rows: Vector, row_counts: Vector, given: Vector) -> None:
        """Add `row_counts[i]` tasks of `rows[i]`, distributed over cells as in `given`."""
        cells = given.nonzero()[0]
        self.collected.append(PlacementCounts(rows, row_counts, cells, given[cells]))

    def placements(self) -> PlaceTasks:
        """Return one entry per row and cell: the first tasks are placed on the first cells."""
        if not self.collected:
            return PlaceTasks()
        # Rows and cells of each item have equal sums, so all items can be concatenated.
        ends_of_rows = np.cumsum(np.concatenate([item.row_counts for item in self.collected]))
        ends_of_cells = np.cumsum(np.concatenate([item.cell_counts for item in self.collected]))
        ends = np.union1d(ends_of_rows, ends_of_cells)
        ends = ends[ends > 0]
        all_rows = np.concatenate([item.rows for item in self.collected])
        rows = all_rows[np.searchsorted(ends_of_rows, ends)].tolist()
        all_cells = np.concatenate([item.cells for item in self.collected])
        cells = all_cells[np.searchsorted(ends_of_cells, ends)].tolist()
        counts = np.diff(ends, prepend=0).tolist()
        waiting, ids = self.waiting, [cell.cell_id for cell in self.snapshot.cells]
        return PlaceTasks(
            [waiting.job_ids[row] for row in rows],
            [waiting.group_ids[row] for row in rows],
            [waiting.shape_ids[row] for row in rows],
            [ids[cell] for cell in cells],
            counts,
            [waiting.avoid_cell_ids[row] for row in rows],
            [waiting.nominated_cell_ids[row] for row in rows],
            [waiting.prefer_cell_ids[row] for row in rows],
        )
