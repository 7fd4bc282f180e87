"""What sequencers with a fixed order share: rows of one shape that follow each other take turns."""

from collections.abc import Iterator

import numpy as np

from controlplane.domain.placement.model.interfaces import Queue, Turn, Vector


def turns_in(queue: Queue, order: Vector) -> Iterator[Turn]:
    """Return one turn for each run of equal shapes in `order`; runs with nothing left are left
    out.
    """
    if not len(order):
        return
    bounds = np.flatnonzero(np.diff(queue.shape[order])) + 1
    for rows in np.split(order, bounds):
        left = int(queue.left[rows].sum())
        if left:
            yield Turn(rows, left)
