"""Last in, first out: the newest job first; jobs of a parent before new ones."""

from collections.abc import Iterator

import numpy as np

from controlplane.domain.placement.model.interfaces import Queue, Turn
from controlplane.domain.placement.plugins.sequencers.order import turns_in


class Lifo:
    """Sequencer by job, newest first; the groups of one job keep their order."""

    uses_shares = False

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns by job, newest first, after all children."""
        return turns_in(queue, np.lexsort((-queue.job, ~queue.is_child)))
