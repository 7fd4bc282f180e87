"""Owners that are raised to one level together end as equal as if they took turns."""

import random

import pytest

from controlplane.domain.placement.model.policy import PoolPolicy
from tests.unit.domain.placement.pools import Outcome, Row, cell, row, run

BY_SHARE = PoolPolicy(sequencer="drf", max_building_per_cell=None)


def outcome_of(drawn: random.Random, *, cpu: int | None) -> tuple[list[Row], Outcome]:
    """Rows of a few owners that all request `cpu`, or each its own amount."""
    owners = drawn.randint(2, 6)
    requested = {owner: cpu or drawn.randint(300, 4000) for owner in range(1, owners + 1)}
    cells = [cell(n, cpu=drawn.choice([4000, 16_000])) for n in range(1, drawn.randint(2, 12))]
    rows = []
    for group in range(1, drawn.randint(owners, 30)):
        owner, count = drawn.randint(1, owners), drawn.choice([1, 5, 40])
        rows.append(row(group, count, cpu=requested[owner], owner_id=owner))
    return rows, run(cells, *rows, policy=BY_SHARE)


def by_owner(rows: list[Row], outcome: Outcome) -> dict[int, int]:
    held = {one.shape.owner_id: 0 for one in rows}
    for one in rows:
        held[one.shape.owner_id] += outcome.placed.get(one.group_id, 0)
    return held


@pytest.mark.parametrize("seed", range(60))
def test_owners_with_equal_demand_end_within_one_task_of_each_other(seed: int) -> None:
    drawn = random.Random(seed)
    rows, outcome = outcome_of(drawn, cpu=drawn.randint(300, 4000))
    held = by_owner(rows, outcome)
    wanted = {owner: sum(o.count for o in rows if o.shape.owner_id == owner) for owner in held}
    waiting = [held[owner] for owner in held if held[owner] < wanted[owner]]
    if waiting:
        assert max(held.values()) - min(waiting) <= 1


@pytest.mark.parametrize("seed", range(60))
def test_unequal_demand_over_commits_no_cell(seed: int) -> None:
    rows, together = outcome_of(random.Random(seed), cpu=None)
    placed = together.plan.placements
    free = {one.cell_id: one.capacity["cpu_millis"] for one in together.pool.snapshot.cells}
    requested = {one.group_id: one.shape.resources["cpu_millis"] for one in rows}
    for group, to_cell, count in zip(placed.group_ids, placed.cell_ids, placed.counts, strict=True):
        free[to_cell] -= requested[group] * count
    assert min(free.values(), default=0) >= 0


def test_task_that_does_not_fit_does_not_limit_other_owners() -> None:
    rows = [row(1, cpu=9000, owner_id=1), row(2, 40, owner_id=1), row(3, 40, owner_id=2)]
    outcome = run([cell(n, cpu=8000) for n in range(1, 5)], *rows, policy=BY_SHARE)
    assert outcome.placed == {2: 16, 3: 16}
