"""The cheapest set of victims that covers what is lacking: exact while that is little work.

What can be evicted comes as columns. Rows that cost and free the same are one *kind*; of a kind the
youngest go first, so a set is one number for each kind. All such sets are compared while there are
at most so many of them; else victims are picked one by one, by how much of the lack each covers,
and those that turn out not to be needed are taken back.
"""

import math
from dataclasses import dataclass

import numpy as np

from controlplane.domain.placement.model.interfaces import Matrix, Vector

Cost = tuple[int, int, int, int]
"""What is made least, in this order: INTERACTIVE victims, BATCH victims, surplus (in millionths),
and the running time that is lost in all (in microseconds; so the youngest go)."""

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class EvictionChoices:
    """What can be evicted, each row whole or not at all.

    `victims`: rows x 2, how many INTERACTIVE and BATCH tasks it is; `frees`: rows x dimensions;
    `ages`: running time that is lost with it, in microseconds.
    """

    victims: Matrix
    frees: Matrix
    ages: Vector


@dataclass(frozen=True, slots=True)
class ShortfallVector:
    """What must come free, by dimension; 0: nothing. `limits`: what a share is a share of.

    `parts`: which dimensions belong together: those of the cell, and those of each scope.
    """

    amounts: Vector
    limits: Vector
    parts: tuple[slice, ...]


def surplus(freed: Matrix, lacking: Matrix, limits: Matrix, parts: tuple[slice, ...]) -> Vector:
    """Return what comes free beyond the lack, of each row, in millionths: the largest share of each
    part.

    A share is of the cell's capacity, or of the scope's limit; the parts are added up.
    """
    beyond = np.maximum(freed - lacking, 0) * MILLION // np.maximum(limits, 1)
    tops = [beyond[..., part].max(axis=-1, initial=0) for part in parts]
    return np.asarray(sum(tops), dtype=np.int64)


def cost_of(choices: EvictionChoices, rows: Vector, lack: ShortfallVector) -> Cost:
    """Return what it costs to evict `rows`."""
    interactive, batch = choices.victims[rows].sum(axis=0).tolist()
    freed = choices.frees[rows].sum(axis=0)
    beyond = int(surplus(freed, lack.amounts, lack.limits, lack.parts))
    return interactive, batch, beyond, int(choices.ages[rows].sum())


def dearest_first(victims: Matrix, ages: Vector, rows: Vector) -> Vector:
    """Return rows in the order in which they are spared: INTERACTIVE, more victims, longest
    running.
    """
    costs = victims[rows]
    return rows[np.lexsort((rows, -ages[rows], -costs[:, 1], -costs[:, 0]))]


def cheapest_cover(
    choices: EvictionChoices, lack: ShortfallVector, *, most_sets: int
) -> Vector | None:
    """Return the rows to evict, the cheapest set that covers `lack`; None: all of them do not cover
    it.

    The best by `Cost` where there are at most `most_sets` sets to compare; else a small one of
    which none can be left out. Of equal ones it takes the younger rows, then the first.
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
        useful = batch  # no INTERACTIVE task has to go
    useful = useful[np.argsort(choices.ages[useful], kind="stable")]
    kinds = _kinds(choices, useful)
    # Each kind doubles the number of sets at least.
    if len(kinds) <= most_sets.bit_length():
        caps = _caps(choices, kinds, frees, amounts)
        if math.prod(cap + 1 for cap in caps) <= most_sets:
            return _compare_all(choices, lack, kinds, caps)
    return _pick_one_by_one(choices, amounts, frees, useful)


def _kinds(choices: EvictionChoices, rows: Vector) -> list[list[int]]:
    """Return rows that cost and free the same, in the order of `rows`."""
    alike: dict[bytes, list[int]] = {}
    table = np.hstack([choices.victims[rows], choices.frees[rows]])
    for row, key in zip(rows.tolist(), table, strict=True):
        alike.setdefault(key.tobytes(), []).append(row)
    return list(alike.values())


def _caps(
    choices: EvictionChoices, kinds: list[list[int]], frees: Matrix, amounts: Vector
) -> list[int]:
    """More rows of a kind than these are never needed: they cover all that the kind helps with."""
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
    # One number to compare: an INTERACTIVE victim is more than all BATCH ones.
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
    """INTERACTIVE ones only for what all BATCH ones leave uncovered; then back what can go back."""
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
    """Return rows until nothing is lacking: next the one that covers most for each victim."""
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
