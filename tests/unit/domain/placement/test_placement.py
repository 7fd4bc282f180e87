"""Placing shapes: spread evenly, never over-committed, skipped with a reason if they do not fit."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.state.states import CellState
from tests.unit.domain.placement.pools import NOW, Outcome, cell, pool, row, run


def reason_of(outcome: Outcome) -> dict[str, Any]:
    return outcome.reasons[1]


def test_tasks_are_spread_evenly_over_equal_cells() -> None:
    # Diego's auction: 8 tasks on 4 cells, 40 on 10, 200 on 20, 800 on 40.
    for tasks, cells in ((8, 4), (40, 10), (200, 20), (800, 40)):
        outcome = run([cell(n, cpu=100_000, memory=10**6) for n in range(cells)], row(count=tasks))
        counts = outcome.per_cell
        assert outcome.plan.count == tasks
        assert max(counts.values()) - min(counts.values()) <= 1


def test_the_emptier_cell_comes_first() -> None:
    busy = cell(1, used={"cpu_millis": 4000})
    assert run([busy, cell(2)], row(count=4)).per_cell == {2: 4}


def test_ties_are_broken_by_cell_name() -> None:
    assert run([cell(1), cell(2)], row()).per_cell == {1: 1}


def test_no_cell_receives_more_tasks_than_fit() -> None:
    outcome = run([cell(1, cpu=2500), cell(2, cpu=1999)], row(count=10))
    assert outcome.per_cell == {1: 2, 2: 1}


def test_capacity_taken_by_an_earlier_shape_is_missing_for_a_later_one() -> None:
    outcome = run([cell(1, cpu=1000)], row(1), row(2))
    assert outcome.placed == {1: 1}
    assert outcome.plan.shapes[0].reason is not None
    assert outcome.plan.shapes[0].reason["code"] == "insufficient_resources"


def test_shape_that_does_not_fit_does_not_block_smaller_shapes() -> None:
    outcome = run([cell(1, cpu=1000)], row(1, cpu=4000), row(2))
    assert outcome.plan.placements.group_ids == [2]


def test_reason_names_the_closest_cell_and_its_shortfall() -> None:
    cells = [cell(1, memory=100), cell(2, memory=4000)]
    reason = reason_of(run(cells, row(resources={"memory_mib": 4096})))
    assert reason["cell"] == "cell-002"
    assert reason["shortfall"] == {"memory_mib": 96}
    assert reason["never_fits"] is True
    assert "lacks 96 of 4096 MiB of memory" in reason["text"]


def test_reason_distinguishes_a_full_cell_from_one_too_small() -> None:
    full = cell(1, used={"cpu_millis": 8000})
    reason = reason_of(run([full], row()))
    assert reason["never_fits"] is False
    assert (
        reason["text"]
        == "no cell has enough free capacity: cell-001 comes closest and lacks 1 core"
    )


def test_reason_of_a_pool_without_ready_cells() -> None:
    assert reason_of(run([], row()))["text"] == "the pool has no cell"
    reason = reason_of(run([], row(), unready_cells={CellState.LOST: 2}))
    assert reason["text"] == "the pool has no ready cell (2 LOST)"


def test_task_type_without_a_cell_matches_no_cell() -> None:
    assert reason_of(run([cell(1)], row(task_type="process")))["code"] == "no_cell_matches"


def test_an_unchanged_reason_is_not_written_again() -> None:
    first = reason_of(run([], row()))
    waited = pool([], row())
    shapes = tuple(replace(shape, reason=first) for shape in waited.snapshot.shapes)
    again = replace(waited, snapshot=replace(waited.snapshot, shapes=shapes))
    assert again.place().shapes == ()
    assert again.screen().reasons == ()


def test_placed_shape_has_its_reason_cleared() -> None:
    waited = pool([cell(1)], row())
    shapes = tuple(replace(shape, reason={"code": "x"}) for shape in waited.snapshot.shapes)
    plan = replace(waited, snapshot=replace(waited.snapshot, shapes=shapes)).place()
    assert [(item.shape_id, item.reason) for item in plan.shapes] == [(1, None)]


@pytest.mark.parametrize(
    ("cells", "chosen"),
    [
        ((1, 2, 3), 3),  # the only one that did not fail it
        ((1, 2), 2),  # all failed it: not the latest
        ((1,), 1),  # the latest is better than none
        ((2, 3), 3),
        ((4, 5), None),  # none of them was avoided
    ],
)
def test_most_recently_failed_cells_are_avoided_as_long_as_another_fits(
    cells: tuple[int, ...], chosen: int | None
) -> None:
    found = run([cell(n) for n in cells], row(avoid_cell_ids=(2, 1))).per_cell
    assert sum(found.values()) == 1
    assert chosen is None or found == {chosen: 1}


def test_task_waits_for_a_full_cell_rather_than_use_an_avoided_one() -> None:
    full = cell(3, used={"cpu_millis": 8000})
    assert run([cell(1), cell(2), full], row(avoid_cell_ids=(2, 1))).placed == {}


def test_avoided_cell_is_used_only_if_no_other_could_hold_the_task() -> None:
    full = cell(2, used={"cpu_millis": 8000})
    assert run([cell(1), full], row(avoid_cell_id=1)).placed == {}
    assert run([cell(1), cell(2, cpu=500)], row(avoid_cell_id=1)).per_cell == {1: 1}


def test_starving_task_is_placed_on_an_avoided_cell() -> None:
    full = cell(2, used={"cpu_millis": 8000})
    patience = PoolPolicy().starvation_seconds
    assert patience == 300
    for waited, placed in ((299, {}), (300, {1: 1})):
        waits = row(avoid_cell_id=1, since=NOW - timedelta(seconds=waited))
        assert run([cell(1), full], waits).per_cell == placed
    waits = row(avoid_cell_id=1, since=NOW - timedelta(days=1))
    without = PoolPolicy(starvation_seconds=None)
    assert run([cell(1), full], waits, policy=without).per_cell == {}


def test_pass_places_at_most_its_limit_and_is_marked_incomplete() -> None:
    outcome = run([cell(1)], row(1, count=6), row(2), limit=4)
    assert outcome.plan.count == 4
    assert outcome.plan.complete is False
    assert outcome.plan.shapes == ()


def test_tasks_without_resource_requests_are_spread_evenly() -> None:
    outcome = run([cell(1), cell(2)], row(count=10, resources={"cpu_millis": 0}))
    assert outcome.per_cell == {1: 5, 2: 5}
