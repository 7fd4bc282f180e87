"""The rows of a pass as columns of numbers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.model.capacity_matrix import Mask
from controlplane.domain.placement.model.interfaces import Vector
from controlplane.domain.placement.model.snapshot import PendingRows, ShapeFacts


class PendingColumns:
    """Columns of equal length. `is_special`: the row avoids a cell or has a nomination."""

    def __init__(self, waiting: PendingRows, shapes: Sequence[ShapeFacts]) -> None:
        self.job: Vector = np.array(waiting.job_ids, dtype=np.int64)
        self.shape: Vector = np.array(waiting.shape_ids, dtype=np.int64)
        self.rank: Vector = np.array(waiting.ranks, dtype=np.int64)
        self.is_child: NDArray[np.bool_] = np.array(waiting.is_child, dtype=bool)
        self.is_first: NDArray[np.bool_] = np.array(waiting.is_first, dtype=bool)
        self.is_nominated = _is_given(waiting.nominated_cell_ids)
        self.prefers: Mask = _is_given(waiting.prefer_cell_ids)
        self.is_special: Mask = self.is_nominated | _is_given(waiting.avoid_cell_ids)
        self.any_special = bool(self.is_special.any())
        self.any_prefers = bool(self.prefers.any())
        ordered = sorted(shapes, key=lambda shape: shape.shape_id)
        self._ids: Vector = np.array([shape.shape_id for shape in ordered], dtype=np.int64)
        self._ordinal: Vector = np.searchsorted(self._ids, self.shape)
        self.band = self._by_shape([int(shape.band) for shape in ordered])
        self.owner = self._by_shape([shape.owner_id for shape in ordered])
        self.project = self._by_shape([shape.project_id for shape in ordered])

    def _by_shape(self, values: Sequence[int]) -> Vector:
        return np.asarray(np.array(values, dtype=np.int64)[self._ordinal])

    def waiting_by_shape(self, left: Vector) -> dict[int, int]:
        """Return the number of waiting tasks by shape; `left`: by row."""
        sums = np.bincount(self._ordinal, weights=left, minlength=len(self._ids))
        seen = np.unique(self._ordinal)
        return dict(zip(self._ids[seen].tolist(), sums[seen].astype(int).tolist(), strict=True))


def _is_given(values: Sequence[object]) -> Mask:
    if values.count(None) == len(values):
        return np.zeros(len(values), dtype=bool)
    return np.array([value is not None for value in values], dtype=bool)
