"""Dominant shares of cells (utilisation) and of owners (usage of a pool).

The dominant share is the largest of the shares of all resources (Ghodsi et al., DRF).
"""

from math import lcm

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.model.interfaces import Matrix, Vector


def utilisation(capacity: Matrix, used: Matrix) -> NDArray[np.float64]:
    """Return the dominant share by cell.

    Both: resources x cells; resources without capacity are ignored.
    """
    if not capacity.size:
        return np.zeros(capacity.shape[1])
    shares = np.zeros(capacity.shape)
    np.divide(used, capacity, out=shares, where=capacity > 0)
    top: NDArray[np.float64] = shares.max(axis=0)
    return top


def capacity_ranks(capacity: Matrix) -> Vector:
    """Return the rank of the total capacity by cell: 0 is the smallest; equal cells share a rank.

    Total capacity is the sum, over all resources, of the cell's share in the sum of these cells. It
    is computed in integers, so that equal cells are equal.
    """
    totals = [int(total) for total in capacity.sum(axis=1).tolist()]
    common = lcm(*(total for total in totals if total))
    weights = [common // total if total else 0 for total in totals]
    cells = [tuple(amounts) for amounts in capacity.T.tolist()]
    sizes = {
        cell: sum(amount * weight for amount, weight in zip(cell, weights, strict=True))
        for cell in set(cells)
    }
    ranks = {size: rank for rank, size in enumerate(sorted(set(sizes.values())))}
    return np.array([ranks[sizes[cell]] for cell in cells], dtype=np.int64)


def dominant_share(amounts: Vector, total: Vector) -> float:
    """Return the largest share of `amounts` in `total`; resources with total 0 are ignored."""
    has = total > 0
    return float((amounts[has] / total[has]).max(initial=0.0))
