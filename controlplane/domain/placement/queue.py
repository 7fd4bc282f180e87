"""The rows of one band that wait, as sequencers see them; what is left of each moves."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.board import Board
from controlplane.domain.placement.interfaces import Vector
from controlplane.domain.placement.ledger import Ledger
from controlplane.domain.placement.rows import Rows
from controlplane.domain.placement.shares import dominant_share
from controlplane.domain.placement.snapshot import ShapeFacts


class BandQueue:
    """Rows of one band (or those of them that come first), in order of job and group.

    `place`: where each stands among all rows of the pass.
    """

    def __init__(
        self,
        rows: Rows,
        place: Vector,
        shapes: dict[int, ShapeFacts],
        left: Vector,
        ledger: Ledger,
        board: Board,
    ) -> None:
        self.place = place
        self.job: Vector = rows.job[place]
        self.shape: Vector = rows.shape[place]
        self.is_child: NDArray[np.bool_] = rows.is_child[place]
        self.owner: Vector = rows.owner[place]
        self.left: Vector = left[place]
        for column in (self.job, self.shape, self.is_child, self.owner):
            column.flags.writeable = False  # a sequencer reads, and changes nothing
        self._shapes, self._ledger, self._board = shapes, ledger, board
        self._total = board.total
        self._by_shape: tuple[Vector, Vector] | None = None

    def __len__(self) -> int:
        return len(self.place)

    def share_of(self, owner: int) -> float:
        """The owner's dominant share of the pool just now."""
        return dominant_share(self._ledger.held_by(owner, self._board.names), self._total)

    def share_of_task(self, row: int) -> float:
        """By how much one task of the row changes its owner's dominant share, at most."""
        shape = self._shapes[int(self.shape[row])]
        return dominant_share(self._board.vector(shape.resources), self._total)

    def weight_of(self, owner: int) -> float:
        """The owner's weight."""
        return self._ledger.weight_of(owner)

    def close(self, shape_id: int) -> None:
        """Nothing of the shape can be placed any more in this pass."""
        if self._by_shape is None:
            order = np.argsort(self.shape, kind="stable")
            self._by_shape = order, self.shape[order]
        order, shapes = self._by_shape
        first, last = shapes.searchsorted(shape_id), shapes.searchsorted(shape_id, "right")
        self.left[order[first:last]] = 0

    def close_rows(self, places: Sequence[int]) -> None:
        """Nothing of these rows (by their place in the pass) can be placed any more."""
        if len(places):
            self.left[np.isin(self.place, places)] = 0
