"""The cheapest set of victims that covers a shortage: exact for small inputs.

Candidates are rows. Rows with equal cost and freed amounts are one *kind*; the youngest of a kind
are evicted first, so a set is one number for each kind. If there are few such sets, all are
compared; else victims are picked one by one, by their part of the shortage, and those that are not
needed are dropped.
"""

import math
from dataclasses import dataclass

import numpy as np

from controlplane.domain.placement.model.interfaces import Matrix, Vector

Cost = tuple[int, int, int, int]
"""Minimized in this order: INTERACTIVE victims, BATCH victims, surplus (in millionths), and the
lost running time (in microseconds)."""

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class EvictionChoices:
    """Candidates, of which each row is evicted whole or not at all.

    `victims`: rows x 2, number of INTERACTIVE and BATCH tasks; `frees`: rows x dimensions; `ages`:
    lost running time, in microseconds.
    """

    victims: Matrix
    frees: Matrix
    ages: Vector


@dataclass(frozen=True, slots=True)
class ShortfallVector:
    """The amounts to free, by dimension. `limits`: the totals of shares.

    `parts`: the dimensions of the cell, and those of each scope.
    """

    amounts: Vector
    limits: Vector
    parts: tuple[slice, ...]


def surplus(freed: Matrix, lacking: Matrix, limits: Matrix, parts: tuple[slice, ...]) -> Vector:
    """Return the surplus of each row in millionths: the sum of the largest share of each part.

    A share is of the cell's capacity, or of the scope's limit.
    """
    beyond = np.maximum(freed - lacking, 0) * MILLION // np.maximum(limits, 1)
    tops = [beyond[..., part].max(axis=-1, initial=0) for part in parts]
    return np.asarray(sum(tops), dtype=np.int64)


def cost_of(choices: EvictionChoices, rows: Vector, lack: ShortfallVector) -> Cost:
    """Return the cost of evicting `rows`."""
    interactive, batch = choices.victims[rows].sum(axis=0).tolist()
    freed = choices.frees[rows].sum(axis=0)
    beyond = int(surplus(freed, lack.amounts, lack.limits, lack.parts))
    return interactive, batch, beyond, int(choices.ages[rows].sum())


def dearest_first(victims: Matrix, ages: Vector, rows: Vector) -> Vector:
    """Return rows by descending cost: INTERACTIVE, more victims, longest running."""
    costs = victims[rows]
    return rows[np.lexsort((rows, -ages[rows], -costs[:, 1], -costs[:, 0]))]


def cheapest_cover(
    choices: EvictionChoices, lack: ShortfallVector, *, most_sets: int
) -> Vector | None:
    """Return the cheapest set of rows that covers `lack`; None: all rows do not cover it.

    The best by `Cost` if there are at most `most_sets` sets to compare; else a small one without
    spare rows. Ties are broken by younger rows, then by order.
    """
    lacking = np.flatnonzero(lack.amounts > 0)
    if not len(lacking):
        return np.zeros(0, dtype=np.int64)
    amounts, frees = lack.amounts[lacking], choices.frees[:, lacking]
    useful = np.flatnonzero(frees.any(axis=1))
    if (frees.sum(axis=0) < amounts).any():
        return None
    batch = useful[choices.victims[useful, 0] == 0]
    if (frees[batch].sum(axis=0) >= amounts).all():
        useful = batch  # no INTERACTIVE task is needed
    useful = useful[np.argsort(choices.ages[useful], kind="stable")]
    kinds = _kinds(choices, useful)
    # Each kind at least doubles the number of sets.
    if len(kinds) <= most_sets.bit_length():
        caps = _caps(choices, kinds, frees, amounts)
        if math.prod(cap + 1 for cap in caps) <= most_sets:
            return _compare_all(choices, lack, kinds, caps)
    return _pick_one_by_one(choices, amounts, frees, useful)


def _kinds(choices: EvictionChoices, rows: Vector) -> list[list[int]]:
    """Return the rows grouped by equal cost and freed amounts, in the order of `rows`."""
    alike: dict[bytes, list[int]] = {}
    table = np.hstack([choices.victims[rows], choices.frees[rows]])
    for row, key in zip(rows.tolist(), table, strict=True):
        alike.setdefault(key.tobytes(), []).append(row)
    return list(alike.values())


def _caps(
    choices: EvictionChoices, kinds: list[list[int]], frees: Matrix, amounts: Vector
) -> list[int]:
    """Return the maximum number of rows of each kind that can be needed."""
    each = frees[[kind[0] for kind in kinds]]
    most = np.where(each > 0, -(-amounts // np.maximum(each, 1)), 0).max(axis=1).tolist()
    return [min(len(kind), cap) for kind, cap in zip(kinds, most, strict=True)]


def _compare_all(
    choices: EvictionChoices, lack: ShortfallVector, kinds: list[list[int]], caps: list[int]
) -> Vector:
    first = [kind[0] for kind in kinds]
    sets = np.indices([cap + 1 for cap in caps]).reshape(len(kinds), -1).T[::-1]
    enough = (sets @ choices.frees[first] >= lack.amounts).all(axis=1)
    sets = sets[enough]
    victims = sets @ choices.victims[first]
    # One number for comparison: an INTERACTIVE victim costs more than all BATCH ones.
    rank = victims[:, 0] * (int(victims[:, 1].max()) + 1) + victims[:, 1]
    sets = sets[rank == rank.min()]
    if len(sets) > 1:
        ages = np.zeros(len(sets), dtype=np.int64)
        for column, kind in enumerate(kinds):
            sums = np.concatenate([[0], np.cumsum(choices.ages[kind])])
            ages += sums[sets[:, column]]
        beyond = surplus(sets @ choices.frees[first], lack.amounts, lack.limits, lack.parts)
        sets = sets[np.lexsort((ages, beyond))]
    picked = [
        row for kind, count in zip(kinds, sets[0].tolist(), strict=True) for row in kind[:count]
    ]
    return np.array(sorted(picked), dtype=np.int64)


def _pick_one_by_one(
    choices: EvictionChoices, amounts: Vector, frees: Matrix, rows: Vector
) -> Vector:
    """Pick INTERACTIVE rows only for the rest that BATCH rows leave; then drop spare rows."""
    interactive = rows[choices.victims[rows, 0] > 0]
    batch = rows[choices.victims[rows, 0] == 0]
    open_now = amounts - frees[batch].sum(axis=0)
    picked = _greedy(choices, frees, interactive, open_now)
    open_now = amounts - frees[picked].sum(axis=0)
    picked = np.concatenate([picked, _greedy(choices, frees, batch, open_now)])
    spare = frees[picked].sum(axis=0) - amounts
    kept = []
    for row in dearest_first(choices.victims, choices.ages, picked).tolist():
        if (frees[row] <= spare).all():
            spare -= frees[row]
        else:
            kept.append(row)
    return np.sort(np.array(kept, dtype=np.int64))


def _greedy(choices: EvictionChoices, frees: Matrix, rows: Vector, lacking: Vector) -> Vector:
    """Return rows that cover `lacking`, by descending coverage per victim."""
    left, picked = np.maximum(lacking, 0), list[int]()
    weights = 1 / np.maximum(left, 1)
    count = np.maximum(choices.victims.sum(axis=1), 1)
    while left.any():
        gains = (np.minimum(frees[rows], left) * weights).sum(axis=1) / count[rows]
        index = int(gains.argmax())
        picked.append(int(rows[index]))
        left = np.maximum(left - frees[rows[index]], 0)
        rows = np.delete(rows, index)
    return np.array(picked, dtype=np.int64)
