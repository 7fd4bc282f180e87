"""Concentrated: place each task on the most utilised cell.

Ties are broken by smaller total capacity, then by name. One cell is filled before the next, so that
large tasks still find empty cells.
Source: Backend.AI (ConcentratedSelector).
"""

import numpy as np

from controlplane.domain.placement.model.interfaces import CellOffer, Vector
from controlplane.domain.placement.model.shares import utilisation


class ConcentratedSelector:
    """Selector of the most utilised cell that fits."""

    keeps_place = False

    def select(self, offer: CellOffer, count: int) -> Vector:
        """Return counts by descending utilisation: each cell is filled before the next."""
        order = np.lexsort((offer.sizes, -utilisation(offer.capacity, offer.used)))
        room = offer.room[order]
        before = np.cumsum(room) - room
        given = np.zeros_like(offer.room)
        given[order] = np.clip(count - before, 0, room)
        return given
