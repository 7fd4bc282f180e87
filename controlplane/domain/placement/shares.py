"""Dominant shares: of a cell (how utilised it is), and of an owner (how much of a pool he holds).

The dominant share is the largest of the shares of all resources (Ghodsi et al., DRF).
"""

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.interfaces import Matrix, Vector


def utilisation(capacity: Matrix, used: Matrix) -> NDArray[np.float64]:
    """By cell, its dominant share. Both: resources x cells; what a cell lacks does not count."""
    if not capacity.size:
        return np.zeros(capacity.shape[1])
    shares = np.where(capacity > 0, used / np.maximum(capacity, 1), 0.0)
    top: NDArray[np.float64] = shares.max(axis=0)
    return top


def dominant_share(amounts: Vector, total: Vector) -> float:
    """The largest share of `amounts` in `total`, by resource; what nobody has does not count."""
    has = total > 0
    return float((amounts[has] / total[has]).max(initial=0.0))
