"""A selector: cells are filled in order of their names."""

import numpy as np

from controlplane.domain.placement.model.interfaces import CellOffer, Vector


class ByName:
    """The first cell that has room takes all it can, then the next."""

    keeps_place = False

    def select(self, offer: CellOffer, count: int) -> Vector:
        """Cells come in order of name: what is left after those before goes to each."""
        before = np.cumsum(offer.room) - offer.room
        return np.minimum(np.maximum(count - before, 0), offer.room)
