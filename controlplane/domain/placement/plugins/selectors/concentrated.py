"""Concentrated: each task goes to the cell that is most utilised just now.

Of cells that are equally utilised the one with the smaller total capacity comes first, then order
is by name. It fills a cell before it begins the next, so that large tasks still find empty ones.
Source: Backend.AI (ConcentratedSelector).
"""

import numpy as np

from controlplane.domain.placement.model.interfaces import CellOffer, Vector
from controlplane.domain.placement.model.shares import utilisation


class ConcentratedSelector:
    """Packs: the most utilised cell that still fits first."""

    keeps_place = False

    def select(self, offer: CellOffer, count: int) -> Vector:
        """Most utilised first: a cell that takes a task stays first, and takes the next."""
        order = np.lexsort((offer.sizes, -utilisation(offer.capacity, offer.used)))
        room = offer.room[order]
        before = np.cumsum(room) - room
        given = np.zeros_like(offer.room)
        given[order] = np.clip(count - before, 0, room)
        return given
