"""Placing shapes: spread evenly, never over-committed, skipped with a reason if they do not fit."""

from typing import Any

from controlplane.domain.placement.place import Plan, place
from controlplane.domain.snapshots import CellFacts, PendingShape, PlacementSnapshot
from controlplane.domain.states import Band, CellState
from tests.unit.domain.facts import NOW


def cell(number: int, *, cpu: int = 8000, memory: int = 8192, **changes: Any) -> CellFacts:
    facts: dict[str, Any] = {
        "cell_id": number,
        "name": f"cell-{number:03}",
        "state": CellState.READY,
        "incarnation": "one",
        "capacity": {"cpu_millis": cpu, "memory_mib": memory},
        "used": {},
        "task_types": frozenset({"container"}),
    }
    return CellFacts(**{**facts, **changes})


def shape(group: int = 1, count: int = 1, *, cpu: int = 1000, **changes: Any) -> PendingShape:
    facts: dict[str, Any] = {
        "group_id": group,
        "job_id": group,
        "band": Band.INTERACTIVE,
        "count": count,
        "resources": {"cpu_millis": cpu, "memory_mib": 64},
        "task_type": "container",
    }
    return PendingShape(**{**facts, **changes})


def run(cells: list[CellFacts], *shapes: PendingShape, limit: int = 10_000, **rest: Any) -> Plan:
    return place(PlacementSnapshot(1, NOW, tuple(cells), shapes, **rest), limit=limit)


def per_cell(plan: Plan) -> dict[int, int]:
    counts: dict[int, int] = {}
    for cell_id, count in zip(plan.placements.cell_ids, plan.placements.counts, strict=True):
        counts[cell_id] = counts.get(cell_id, 0) + count
    return counts


def reason_of(plan: Plan, group: int = 1) -> dict[str, Any]:
    return dict(next(item.reason for item in plan.explanations if item.group_id == group))


def test_tasks_are_spread_evenly_over_equal_cells() -> None:
    # Diego's auction: 8 tasks on 4 cells, 40 on 10, 200 on 20, 800 on 40.
    for tasks, cells in ((8, 4), (40, 10), (200, 20), (800, 40)):
        plan = run([cell(n, cpu=100_000, memory=10**6) for n in range(cells)], shape(count=tasks))
        counts = per_cell(plan)
        assert plan.count == tasks
        assert max(counts.values()) - min(counts.values()) <= 1


def test_the_emptier_cell_comes_first() -> None:
    busy = cell(1, used={"cpu_millis": 4000})
    assert per_cell(run([busy, cell(2)], shape(count=4))) == {2: 4}


def test_ties_go_by_name() -> None:
    assert per_cell(run([cell(1), cell(2)], shape())) == {1: 1}


def test_no_cell_gets_more_than_fits() -> None:
    plan = run([cell(1, cpu=2500), cell(2, cpu=1999)], shape(count=10))
    assert per_cell(plan) == {1: 2, 2: 1}


def test_an_earlier_shape_takes_what_a_later_one_then_lacks() -> None:
    plan = run([cell(1, cpu=1000)], shape(1), shape(2))
    assert plan.placements.group_ids == [1]
    assert reason_of(plan, 2)["code"] == "insufficient_resources"


def test_a_misfit_does_not_hold_up_smaller_shapes() -> None:
    plan = run([cell(1, cpu=1000)], shape(1, cpu=4000), shape(2))
    assert plan.placements.group_ids == [2]


def test_the_reason_names_the_best_cell_and_what_it_lacks() -> None:
    plan = run([cell(1, memory=100), cell(2, memory=4000)], shape(resources={"memory_mib": 4096}))
    reason = reason_of(plan)
    assert reason["cell"] == "cell-002"
    assert reason["shortfall"] == {"memory_mib": 96}
    assert reason["never_fits"] is True
    assert "lacks 96 MiB of memory" in reason["text"]


def test_a_full_cell_that_could_hold_it_is_told_apart_from_one_too_small() -> None:
    full = cell(1, used={"cpu_millis": 8000})
    reason = reason_of(run([full], shape()))
    assert reason["never_fits"] is False
    assert reason["text"] == (
        "no cell has enough free: cell-001 comes closest and lacks 1 of a core"
    )


def test_a_pool_without_ready_cells_says_so() -> None:
    assert reason_of(run([], shape()))["text"] == "the pool has no cell"
    reason = reason_of(run([], shape(), unready_cells={CellState.LOST: 2}))
    assert reason["text"] == "the pool has no ready cell (2 LOST)"


def test_a_task_type_that_no_cell_runs_matches_no_cell() -> None:
    assert reason_of(run([cell(1)], shape(task_type="process")))["code"] == "no_cell_matches"


def test_an_unchanged_reason_is_not_written_again() -> None:
    first = run([], shape())
    again = run([], shape(reason=reason_of(first)))
    assert again.explanations == ()


def test_the_avoided_cell_is_left_out_while_another_could_take_it() -> None:
    full = cell(2, used={"cpu_millis": 8000})
    assert run([cell(1), full], shape(avoid_cell_id=1)).count == 0
    assert per_cell(run([cell(1), cell(2, cpu=500)], shape(avoid_cell_id=1))) == {1: 1}


def test_a_pass_places_at_most_its_limit_and_says_that_it_is_not_done() -> None:
    plan = run([cell(1)], shape(1, count=6), shape(2), limit=4)
    assert plan.count == 4
    assert plan.complete is False
    assert plan.explanations == ()


def test_tasks_that_ask_for_nothing_are_spread_too() -> None:
    plan = run([cell(1), cell(2)], shape(count=10, resources={"cpu_millis": 0}))
    assert per_cell(plan) == {1: 5, 2: 5}
