"""The cheapest cover, where all sets are compared and where they are too many."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.placement.preemption.cover import (
    EvictionChoices,
    ShortfallVector,
    cheapest_cover,
    cost_of,
)

seeds = st.integers(0, 2**32)


def drawn(seed: int) -> tuple[EvictionChoices, ShortfallVector]:
    """Up to 10 units over two dimensions of a cell and one of a scope; a third INTERACTIVE."""
    random = np.random.default_rng(seed)
    units = int(random.integers(1, 11))
    members = random.choice([1, 1, 1, 2], size=units)
    is_interactive = random.random(units) < 0.3
    victims = np.where(is_interactive[:, None], [[1, 0]], [[0, 1]]) * members[:, None]
    frees = random.integers(0, 5, size=(units, 3))
    ages = random.integers(0, 4, size=units)
    limits = np.array([16, 12, 10])
    amounts = random.integers(0, 1 + np.maximum(frees.sum(axis=0) * 6 // 10, 1))
    return EvictionChoices(victims, frees, ages), ShortfallVector(
        amounts, limits, (slice(0, 2), slice(2, 3))
    )


def covers(choices: EvictionChoices, lack: ShortfallVector, rows: list[int]) -> bool:
    return bool((choices.frees[rows].sum(axis=0) >= lack.amounts).all())


@given(seeds)
def test_no_set_is_cheaper_than_the_cheapest_cover(seed: int) -> None:
    choices, lack = drawn(seed)
    units = len(choices.ages)
    sets = [[unit for unit in range(units) if number >> unit & 1] for number in range(2**units)]
    costs = [
        cost_of(choices, np.array(rows, dtype=np.int64), lack)
        for rows in sets
        if covers(choices, lack, rows)
    ]
    found = cheapest_cover(choices, lack, most_sets=4_000)
    if found is None:
        assert not costs
    else:
        assert covers(choices, lack, found.tolist())
        assert cost_of(choices, found, lack) == min(costs)


@given(seeds)
def test_greedy_cover_has_no_needless_unit(seed: int) -> None:
    choices, lack = drawn(seed)
    best = cheapest_cover(choices, lack, most_sets=4_000)
    found = cheapest_cover(choices, lack, most_sets=0)
    assert (found is None) == (best is None)
    if found is None or best is None:
        return
    rows = found.tolist()
    assert covers(choices, lack, rows)
    for row in rows:
        assert not covers(choices, lack, [other for other in rows if other != row])
    # INTERACTIVE ones go only where all BATCH ones together are not enough.
    assert bool(choices.victims[rows, 0].any()) == bool(choices.victims[best, 0].any())
