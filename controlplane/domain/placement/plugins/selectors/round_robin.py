"""Round-robin: one cell after the other, by name, starting after the last cell that got a task.

The position is stored with the pool, so that it survives a restart.
"""

import numpy as np

from controlplane.domain.placement.model.interfaces import CellOffer, Vector


class RoundRobin:
    """Selector of all cells in turn, independent of their load."""

    keeps_place = True

    def select(self, offer: CellOffer, count: int) -> Vector:
        """Return counts: whole rounds first, then one per cell from `offer.start` on."""
        low, high = 0, int(count)
        while low < high:  # the maximum number of complete rounds
            rounds = (low + high + 1) // 2
            if int(np.minimum(offer.room, rounds).sum()) <= count:
                low = rounds
            else:
                high = rounds - 1
        given = np.minimum(offer.room, low)
        left = count - int(given.sum())
        order = np.roll(np.arange(len(given)), -offer.start)
        more = order[offer.room[order] > low][:left]
        given[more] += 1
        return given
