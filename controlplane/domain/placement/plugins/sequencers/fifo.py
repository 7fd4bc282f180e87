"""First in, first out: by job, oldest first; jobs of a parent before new ones. The default."""

from collections.abc import Iterator

import numpy as np

from controlplane.domain.placement.model.interfaces import Queue, Turn
from controlplane.domain.placement.plugins.sequencers.order import turns_in


class Fifo:
    """Sequencer by job, oldest first."""

    uses_shares = False

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns in the order of rows, children first."""
        return turns_in(queue, np.argsort(~queue.is_child, kind="stable"))
