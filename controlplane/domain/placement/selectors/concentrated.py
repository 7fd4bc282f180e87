"""Concentrated: each task goes to the cell that is most utilised after taking it.

It fills a cell before it begins the next, so that large tasks still find empty ones. Ties by name.
"""

import numpy as np

from controlplane.domain.placement.interfaces import Offer, Vector
from controlplane.domain.placement.shares import utilisation


class Concentrated:
    """Packs: the most utilised cell that still fits first."""

    keeps_place = False

    def select(self, offer: Offer, count: int) -> Vector:
        """Most utilised first: who takes a task is more utilised still, and takes the next."""
        after = offer.used + offer.request[:, None]
        order = np.argsort(-utilisation(offer.capacity, after), kind="stable")
        room = offer.room[order]
        before = np.cumsum(room) - room
        given = np.zeros_like(offer.room)
        given[order] = np.clip(count - before, 0, room)
        return given
