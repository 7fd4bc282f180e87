"""Projects share a pool by their weights, and the owners of a project share its part."""

import random
from collections import Counter
from typing import Any

import pytest

from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.scopes import ScopeKind, ScopeLimits
from tests.unit.domain.placement.pools import Outcome, Row, cell, quota, row, run

FAIR = PoolPolicy(sequencer="fair_projects", max_building_per_cell=None)


def placed_by(rows: list[Row], outcome: Outcome, key: str) -> Counter[int]:
    """Return the placed tasks by `owner_id` or `project_id`."""
    found: Counter[int] = Counter()
    for one in rows:
        found[getattr(one.shape, key)] += outcome.placed.get(one.group_id, 0)
    return found


def many(group: int, owner: int, project: int, count: int = 100, **changes: Any) -> Row:
    return row(group, count, owner_id=owner, project_id=project, **changes)


def test_many_tasks_of_one_project_do_not_delay_another() -> None:
    rows = [many(1, 1, 1, 5000), many(2, 1, 1, 5000), many(3, 2, 2)]
    outcome = run([cell(n, cpu=10_000) for n in range(1, 5)], *rows, policy=FAIR)
    assert placed_by(rows, outcome, "project_id") == {1: 20, 2: 20}


def test_more_users_of_a_project_do_not_get_it_more() -> None:
    rows = [many(n, n, 1) for n in range(1, 5)] + [many(9, 9, 2)]
    outcome = run([cell(n, cpu=10_000) for n in range(1, 5)], *rows, policy=FAIR)
    assert placed_by(rows, outcome, "project_id") == {1: 20, 2: 20}
    assert placed_by(rows, outcome, "owner_id") == {1: 5, 2: 5, 3: 5, 4: 5, 9: 20}


def test_users_of_the_only_project_share_it() -> None:
    rows = [many(1, 1, 1, 16_000), many(2, 2, 1), many(3, 3, 1)]
    outcome = run([cell(n, cpu=10_000) for n in range(1, 4)], *rows, policy=FAIR)
    assert placed_by(rows, outcome, "owner_id") == {1: 10, 2: 10, 3: 10}


def test_weights_of_projects_and_of_their_users_apply() -> None:
    rows = [many(1, 1, 1), many(2, 2, 1), many(3, 3, 2)]
    weights = (
        quota(ScopeKind.PROJECT, 1, ScopeLimits(weight=3.0)),
        quota(ScopeKind.USER, 2, ScopeLimits(weight=2.0)),
    )
    outcome = run([cell(n, cpu=10_000) for n in range(1, 5)], *rows, policy=FAIR, quotas=weights)
    assert placed_by(rows, outcome, "project_id") == {1: 30, 2: 10}
    assert placed_by(rows, outcome, "owner_id") == {1: 10, 2: 20, 3: 10}


def test_running_tasks_of_a_project_count() -> None:
    rows = [many(1, 1, 1), many(2, 2, 2)]
    outcome = run(
        [cell(n, cpu=10_000) for n in range(1, 3)],
        *rows,
        policy=FAIR,
        project_usage={1: {"cpu_millis": 10_000}},
    )
    assert placed_by(rows, outcome, "project_id") == {1: 5, 2: 15}


def test_unused_part_goes_to_others() -> None:
    rows = [many(1, 1, 1, 3), many(2, 2, 2, 4), many(3, 3, 2, 100, cpu=99_000), many(4, 4, 3)]
    outcome = run([cell(n, cpu=10_000) for n in range(1, 5)], *rows, policy=FAIR)
    assert placed_by(rows, outcome, "project_id") == {1: 3, 2: 4, 3: 33}


@pytest.mark.parametrize("seed", range(60))
def test_projects_and_owners_with_equal_demand_end_within_a_task_of_each_other(seed: int) -> None:
    drawn = random.Random(seed)
    rows = []
    for group in range(1, drawn.randint(3, 30)):
        owner = drawn.randint(1, 6)
        rows.append(many(group, owner, owner % drawn.choice([2, 3]) + 1, drawn.choice([1, 5, 40])))
    projects = {one.shape.owner_id: one.shape.project_id for one in rows}
    rows = [many(r.group_id, o := r.shape.owner_id, projects[o], r.count) for r in rows]
    cells = [cell(n, cpu=drawn.choice([4000, 16_000])) for n in range(1, drawn.randint(2, 9))]
    outcome = run(cells, *rows, policy=FAIR)
    for key, members in (("project_id", rows), *(("owner_id", _of(rows, p)) for p in (1, 2, 3))):
        held = placed_by(members, outcome, key)
        wanted: Counter[int] = Counter()
        for one in members:
            wanted[getattr(one.shape, key)] += one.count
        waiting = [held[name] for name in held if held[name] < wanted[name]]
        if waiting:
            assert max(held.values()) - min(waiting) <= 1


def _of(rows: list[Row], project: int) -> list[Row]:
    return [one for one in rows if one.shape.project_id == project]
