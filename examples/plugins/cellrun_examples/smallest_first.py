"""A sequencer: whose tasks take least of the pool goes first."""

from collections.abc import Iterator

import numpy as np

from controlplane.domain.placement.model.interfaces import Queue, Turn


class SmallestFirst:
    """Rows in order of what one of their tasks takes; oldest job first among equals."""

    uses_shares = False

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """One row after the other, each as often as it has tasks."""
        sizes = [queue.share_of_task(row) for row in range(len(queue.left))]
        for row in np.argsort(sizes, kind="stable"):
            if queue.left[row]:
                yield Turn(np.array([row]), int(queue.left[row]))
