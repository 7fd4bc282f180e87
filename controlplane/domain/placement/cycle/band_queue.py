"""The queue of one band that sequencers receive: pending rows with their remaining tasks."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.cycle.pending_columns import PendingColumns
from controlplane.domain.placement.cycle.quota_usage import QuotaAccounting
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.interfaces import GuaranteedCapacity, Vector
from controlplane.domain.placement.model.shares import dominant_share
from controlplane.domain.placement.model.snapshot import ShapeFacts
from controlplane.domain.scopes import Scope, ScopeKind


class BandQueue:
    """Rows of one band (or only those that come first), ordered by rank, job and group.

    `place`: position of each among all rows of the pass. `limit`: tasks that may still be placed.
    """

    def __init__(
        self,
        rows: PendingColumns,
        place: Vector,
        shapes: dict[int, ShapeFacts],
        left: Vector,
        accounting: QuotaAccounting,
        matrix: CapacityMatrix,
        limit: Callable[[], int],
    ) -> None:
        self.place = place
        self.job: Vector = rows.job[place]
        self.shape: Vector = rows.shape[place]
        self.rank: Vector = rows.rank[place]
        self.is_child: NDArray[np.bool_] = rows.is_child[place]
        self.owner: Vector = rows.owner[place]
        self.project: Vector = rows.project[place]
        self.left: Vector = left[place]
        columns = (self.job, self.rank, self.shape, self.is_child, self.owner, self.project)
        for column in columns:
            column.flags.writeable = False  # sequencers only read
        self._shapes, self._accounting, self._matrix = shapes, accounting, matrix
        self._total, self._limit, self._any_special = matrix.total, limit, rows.any_special
        self._by_shape: tuple[Vector, Vector] | None = None

    def __len__(self) -> int:
        return len(self.place)

    def share_of(self, owner: int) -> float:
        """Return the owner's current dominant share of the pool."""
        held = self._accounting.held_by_owner(owner, self._matrix.names)
        return dominant_share(held, self._total)

    def share_of_project(self, project: int) -> float:
        """Return the project's current dominant share of the pool."""
        held = self._accounting.held_by_project(project, self._matrix.names)
        return dominant_share(held, self._total)

    def share_of_task(self, row: int) -> float:
        """Return the maximum by which one task of the row changes its owner's dominant share."""
        shape = self._shapes[int(self.shape[row])]
        return dominant_share(self._matrix.vector(shape.resources), self._total)

    def weight_of(self, owner: int) -> float:
        """Return the owner's weight."""
        return self._accounting.weight_of(Scope(ScopeKind.USER, owner))

    def weight_of_project(self, project: int) -> float:
        """Return the project's weight."""
        return self._accounting.weight_of(Scope(ScopeKind.PROJECT, project))

    def sure_room(self, rows: Vector) -> GuaranteedCapacity | None:
        """Return the room for tasks of these rows; None if other limits than cells apply.

        A task uses one start slot, and at most as many places of another shape as the largest
        quotient of the requests in a resource, rounded up.
        """
        shapes = [self._shapes[shape_id] for shape_id in self.shape[rows].tolist()]
        if (
            self._accounting.limits_any(shapes)
            or self._any_special
            or any(s.coscheduled for s in shapes)
        ):
            return None
        requests = np.array([self._matrix.vector(shape.resources) for shape in shapes])
        requested = np.maximum(requests, 1)[:, None, :]
        larger = -(-requests[None, :, :] // requested) * (requests[:, None, :] > 0)
        room = [
            int(self._matrix.room(request, self._matrix.usable(shape)).sum())
            for request, shape in zip(requests, shapes, strict=True)
        ]
        weights = np.maximum(larger.max(axis=2, initial=0), 1)
        return GuaranteedCapacity(weights, np.array(room, dtype=np.int64), self._limit())

    def close(self, shape_id: int) -> None:
        """Record that no task of the shape can be placed in the rest of this pass."""
        if self._by_shape is None:
            order = np.argsort(self.shape, kind="stable")
            self._by_shape = order, self.shape[order]
        order, shapes = self._by_shape
        first, last = shapes.searchsorted(shape_id), shapes.searchsorted(shape_id, "right")
        self.left[order[first:last]] = 0

    def close_rows(self, places: Sequence[int]) -> None:
        """Record that no task of these rows (by position in the pass) can be placed any more."""
        if len(places):
            self.left[np.isin(self.place, places)] = 0
