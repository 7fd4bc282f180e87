"""Last in, first out: the newest job first; jobs of a parent before new ones."""

from collections.abc import Iterator

import numpy as np

from controlplane.domain.placement.model.interfaces import Queue, Turn
from controlplane.domain.placement.plugins.sequencers.order import turns_in


class Lifo:
    """Newest job first; the groups of one job stay in their order."""

    uses_shares = False

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return by job, newest first, children first of all."""
        return turns_in(queue, np.lexsort((-queue.job, ~queue.is_child)))
