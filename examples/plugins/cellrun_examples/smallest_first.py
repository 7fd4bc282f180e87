"""A sequencer that tries tasks with the smallest share of the pool first."""

from collections.abc import Iterator

import numpy as np

from controlplane.domain.placement.model.interfaces import Queue, Turn


class SmallestFirst:
    """Sequencer by the share of one task; among equal shares, the oldest job first."""

    uses_shares = False

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return one turn for each row with remaining tasks."""
        sizes = [queue.share_of_task(row) for row in range(len(queue.left))]
        for row in np.argsort(sizes, kind="stable"):
            if queue.left[row]:
                yield Turn(np.array([row]), int(queue.left[row]))
