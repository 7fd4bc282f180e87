"""Turns of sequencers with a fixed order: consecutive rows of one shape share a turn."""

from collections.abc import Iterator

import numpy as np

from controlplane.domain.placement.model.interfaces import Queue, Turn, Vector


def turns_in(queue: Queue, order: Vector) -> Iterator[Turn]:
    """Yield one turn for each run of equal shapes in `order` with remaining tasks."""
    if not len(order):
        return
    bounds = np.flatnonzero(np.diff(queue.shape[order])) + 1
    for rows in np.split(order, bounds):
        left = int(queue.left[rows].sum())
        if left:
            yield Turn(rows, left)
