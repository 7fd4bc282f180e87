"""A selector that fills cells in order of their names."""

import numpy as np

from controlplane.domain.placement.model.interfaces import CellOffer, Vector


class ByName:
    """Selector of the first cell with room."""

    keeps_place = False

    def select(self, offer: CellOffer, count: int) -> Vector:
        """Return counts: each cell, in order of name, takes all remaining tasks that fit."""
        before = np.cumsum(offer.room) - offer.room
        return np.minimum(np.maximum(count - before, 0), offer.room)
