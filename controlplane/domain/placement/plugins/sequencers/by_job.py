"""Sequencers by job, in a fixed order: consecutive rows of one shape share a turn.

Moved jobs come at the front or the end of their band, and jobs of a parent before new ones. First
in, first out is the default.
"""

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


class Fifo:
    """Sequencer by job, oldest first."""

    uses_shares = False

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns in the order of rows: by rank, children first."""
        return turns_in(queue, np.lexsort((~queue.is_child, queue.rank)))


class Lifo:
    """Sequencer by job, newest first; the groups of one job keep their order."""

    uses_shares = False

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns by rank, then children, then by job, newest first."""
        return turns_in(queue, np.lexsort((-queue.job, ~queue.is_child, queue.rank)))
