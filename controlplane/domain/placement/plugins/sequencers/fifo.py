"""First in, first out: by job, oldest first; jobs of a parent before new ones. The default."""

from collections.abc import Iterator

import numpy as np

from controlplane.domain.placement.model.interfaces import Queue, Turn
from controlplane.domain.placement.plugins.sequencers.order import turns_in


class Fifo:
    """Oldest job first."""

    uses_shares = False

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """In the order of rows, children first: what is begun is finished first."""
        return turns_in(queue, np.argsort(~queue.is_child, kind="stable"))
