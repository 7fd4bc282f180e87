"""The order in which the next pass considers the rows of a pool, by its own sequencer; pure."""

from dataclasses import dataclass

import numpy as np

from controlplane.domain.placement.cycle.band_queue import BandQueue
from controlplane.domain.placement.cycle.pending_columns import PendingColumns
from controlplane.domain.placement.cycle.quota_usage import QuotaAccounting
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.interfaces import Sequencer, Vector
from controlplane.domain.placement.model.shares import dominant_share
from controlplane.domain.placement.model.snapshot import PendingRows, PoolSnapshot
from controlplane.domain.placement.plugins.sequencers.by_job import Fifo


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The rows in order, and the present dominant shares of the pool by project."""

    rows: list[int]
    project_shares: dict[int, float]


class _RoomyQueue(BandQueue):
    """A queue whose rows always have room."""

    def sure_room(self, rows: Vector) -> None:
        """Return None, so that sequencers take turns by share, one after the other."""


def order_rows(snapshot: PoolSnapshot, waiting: PendingRows, sequencer: Sequencer) -> RowOrder:
    """Return the order of the first turn of each row in a pass in which every row fits.

    `waiting`: in order of band, rank, job and group; the shares are read from the snapshot.
    """
    columns = PendingColumns(waiting, snapshot.shapes)
    shapes = {shape.shape_id: shape for shape in snapshot.shapes}
    matrix = CapacityMatrix(snapshot.cells, snapshot.shapes, snapshot.policy.tokens)
    accounting = QuotaAccounting(snapshot)
    shares = _project_shares(snapshot, accounting, matrix)
    left = np.array(waiting.counts, dtype=np.int64)
    ordered = list[int]()

    def total() -> int:
        return int(left.sum())

    for band in sorted(set(columns.band.tolist())):
        for is_first, turns in ((True, Fifo().turns), (False, sequencer.turns)):
            rows = np.flatnonzero((columns.band == band) & (columns.is_first == is_first))
            if not len(rows):
                continue
            queue = _RoomyQueue(columns, rows, shapes, left, accounting, matrix, total)
            for turn in turns(queue):
                ordered += [int(queue.place[row]) for row in turn.rows if queue.left[row]]
                shape = shapes[int(queue.shape[turn.rows[0]])]
                accounting.book(shape, set(queue.job[turn.rows].tolist()), turn.tasks)
                # The rest of a row keeps its position.
                queue.left[turn.rows] = 0
    return RowOrder(ordered, shares)


def _project_shares(
    snapshot: PoolSnapshot, accounting: QuotaAccounting, matrix: CapacityMatrix
) -> dict[int, float]:
    return {
        project: dominant_share(accounting.held_by_project(project, matrix.names), matrix.total)
        for project in {shape.project_id for shape in snapshot.shapes}
    }
