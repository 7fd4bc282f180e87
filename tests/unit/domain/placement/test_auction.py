"""The distributions of Diego's auction simulation: how evenly tasks lie, and what a full cell does.

Cells of 100, tasks of 1, 2 or 4; a task counts for as much as it requests.
"""

import random

import pytest

from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import CellFacts
from tests.unit.domain.placement import pools
from tests.unit.domain.placement.pools import Outcome, Row, run

DEAL = [(8, 4), (40, 10), (200, 20), (800, 40), (2_050, 25), (8_200, 100)]


def cell(number: int, used: int = 0) -> CellFacts:
    return pools.cell(number, capacity={"memory_mib": 100}, used={"memory_mib": used})


def tasks(group: int, count: int, size: int = 1) -> Row:
    return pools.row(group, count, resources={"memory_mib": size})


def loads(cells: list[CellFacts], outcome: Outcome, sizes: dict[int, int]) -> dict[int, int]:
    """What each cell holds in the end."""
    held = {one.cell_id: one.used["memory_mib"] for one in cells}
    lines = outcome.plan.placements
    for group, cell_id, count in zip(lines.group_ids, lines.cell_ids, lines.counts, strict=True):
        held[cell_id] += count * sizes[group]
    return held


@pytest.mark.parametrize(("count", "number"), DEAL)
@pytest.mark.parametrize("selector", ["dispersed", "round_robin"])
def test_empty_cells_are_filled_evenly(count: int, number: int, selector: str) -> None:
    cells = [cell(n) for n in range(number)]
    outcome = run(cells, tasks(1, count), policy=PoolPolicy(selector=selector))
    held = loads(cells, outcome, {1: 1})
    assert sum(held.values()) == count
    assert max(held.values()) - min(held.values()) <= 1


@pytest.mark.parametrize(("count", "number"), DEAL)
@pytest.mark.parametrize("seed", range(5))
def test_new_tasks_even_out_unequally_loaded_cells(count: int, number: int, seed: int) -> None:
    luck = random.Random(seed)
    cells = [cell(n, luck.randint(0, min(100 - count // number - 1, 30))) for n in range(number)]
    outcome = run(cells, tasks(1, count))
    held = loads(cells, outcome, {1: 1})
    took = [held[n] for n in outcome.per_cell]
    assert outcome.plan.count == count
    # No owner is more than one task above another, and all are even if there was enough.
    assert max(took) - min(held.values()) <= 1
    before = [one.used["memory_mib"] for one in cells]
    if sum(max(before) - amount for amount in before) <= count:
        assert max(held.values()) - min(held.values()) <= 1


def test_empty_cells_take_all_tasks_until_they_are_as_full_as_the_rest() -> None:
    cells = [cell(n, 50) for n in range(95)] + [cell(n) for n in range(95, 100)]
    some = run(cells, tasks(1, 250)).per_cell
    assert some == dict.fromkeys(range(95, 100), 50)
    held = loads(cells, run(cells, tasks(1, 500)), {1: 1})
    assert sorted(set(held.values())) == [52, 53]


@pytest.mark.parametrize(("count", "number"), [(600, 25), (2_400, 100)])
def test_tasks_of_different_sizes_are_spread_evenly(count: int, number: int) -> None:
    cells = [cell(n) for n in range(number)]
    sizes = {1: 4, 2: 2, 3: 1}
    rows = [tasks(group, count // 3, size) for group, size in sizes.items()]
    outcome = run(cells, *rows)
    held = loads(cells, outcome, sizes)
    assert outcome.plan.count == count
    assert max(held.values()) - min(held.values()) <= 1


def test_small_task_does_not_pass_an_earlier_large_task_that_fits() -> None:
    outcome = run([cell(1)], tasks(1, 2, 50), tasks(2, 80))
    assert outcome.placed == {1: 2}
    assert outcome.reasons[2]["shortfall"] == {"memory_mib": 1}


def test_large_task_behind_small_ones_gets_its_shortfall_as_the_reason() -> None:
    outcome = run([cell(1)], tasks(1, 80), tasks(2, 2, 50))
    assert outcome.placed == {1: 80}
    assert outcome.reasons[2]["shortfall"] == {"memory_mib": 30}
    both = run([cell(1)], tasks(1, 1, 50), tasks(2, 80), tasks(3, 1, 50))
    assert both.placed == {1: 1, 2: 50}


def test_concentrated_selector_fills_one_cell_before_the_next() -> None:
    policy = PoolPolicy(selector="concentrated")
    outcome = run([cell(1), cell(2, 10), cell(3)], tasks(1, 150), policy=policy)
    assert outcome.per_cell == {2: 90, 1: 60}
    boulders = run([cell(1, 20), cell(2)], tasks(1, 30), tasks(2, 1, 100), policy=policy)
    assert boulders.where(2) == {2: 1}
