"""Placement over random clusters: nothing over-committed, all accounted for, the plan the same."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.placement import place as placing
from controlplane.domain.placement.selectors import dispersed
from controlplane.domain.snapshots import CellFacts, PendingShape, PlacementSnapshot
from controlplane.domain.states import Band, CellState
from tests.unit.domain.facts import NOW

NAMES = ("cpu_millis", "memory_mib", "gpu")
amounts = st.integers(0, 40)


def quantities(values: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(dict.fromkeys(NAMES, values))


@st.composite
def snapshots(draw: st.DrawFn) -> PlacementSnapshot:
    cells = []
    for number in range(draw(st.integers(0, 6))):
        capacity = draw(quantities(amounts))
        used = {name: draw(st.integers(0, amount)) for name, amount in capacity.items()}
        types = draw(st.sampled_from([frozenset({"container"}), frozenset({"process"})]))
        cells.append(CellFacts(number, f"c{number}", CellState.READY, "one", capacity, used, types))
    shapes = [
        PendingShape(
            group_id=number,
            job_id=number,
            band=Band.BATCH,
            count=draw(st.integers(1, 12)),
            resources=draw(quantities(st.integers(0, 12))),
            task_type=draw(st.sampled_from(["container", "process"])),
            avoid_cell_id=draw(st.sampled_from([None, None, 0, 1])),
        )
        for number in range(draw(st.integers(0, 6)))
    ]
    return PlacementSnapshot(1, NOW, tuple(cells), tuple(shapes))


@given(snapshots(), st.integers(1, 40))
def test_a_plan_over_commits_nothing_and_explains_the_rest(
    snapshot: PlacementSnapshot, limit: int
) -> None:
    plan = placing.place(snapshot, limit=limit)
    cells = {cell.cell_id: cell for cell in snapshot.cells}
    shapes = {shape.group_id: shape for shape in snapshot.shapes}
    used = {cell.cell_id: dict(cell.used) for cell in snapshot.cells}
    placed = dict.fromkeys(shapes, 0)
    columns = plan.placements
    for group_id, cell_id, count in zip(
        columns.group_ids, columns.cell_ids, columns.counts, strict=True
    ):
        assert count > 0
        assert shapes[group_id].task_type in cells[cell_id].task_types
        placed[group_id] += count
        for name, amount in shapes[group_id].resources.items():
            used[cell_id][name] += amount * count
    for cell_id, cell in cells.items():
        assert all(used[cell_id][name] <= cell.capacity[name] for name in NAMES)
    assert plan.count <= limit
    explained = {item.group_id for item in plan.explanations}
    for group_id, shape in shapes.items():
        assert placed[group_id] <= shape.count
        if plan.complete and placed[group_id] < shape.count:
            assert group_id in explained


@given(snapshots(), st.integers(1, 40))
def test_the_same_snapshot_gives_the_same_plan(snapshot: PlacementSnapshot, limit: int) -> None:
    assert placing.place(snapshot, limit=limit) == placing.place(snapshot, limit=limit)


@given(st.data())
def test_one_step_for_a_shape_equals_placing_its_tasks_one_by_one(data: st.DataObject) -> None:
    cells = data.draw(st.integers(1, 5))
    row = st.lists(st.integers(1, 30), min_size=2, max_size=2)
    capacity = np.array(data.draw(st.lists(row, min_size=cells, max_size=cells)), dtype=np.int64)
    used = np.array(
        [[data.draw(st.integers(0, int(amount))) for amount in line] for line in capacity],
        dtype=np.int64,
    )
    request = np.array(data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=2)))
    count = data.draw(st.integers(0, 20))
    asked = request > 0
    free = np.maximum(capacity - used, 0)
    room = (
        (free[:, asked] // request[asked]).min(axis=1)
        if asked.any()
        else np.full(cells, 50, dtype=np.int64)
    )
    together = dispersed.select(capacity, used, request, room, count)
    alone = np.zeros(cells, dtype=np.int64)
    for _ in range(min(count, int(room.sum()))):
        open_cells = [index for index in range(cells) if alone[index] < room[index]]
        best = min(
            open_cells,
            key=lambda index: (
                ((used[index] + (alone[index] + 1) * request) / capacity[index]).max(),
                alone[index],
                index,
            ),
        )
        alone[best] += 1
    assert together.tolist() == alone.tolist()


@given(st.integers(1, 400), st.integers(1, 30))
def test_the_common_level_changes_nothing(count: int, cells: int) -> None:
    capacity = np.full((cells, 1), 1000, dtype=np.int64)
    used = np.arange(cells, dtype=np.int64)[:, None] % 7
    request = np.array([3], dtype=np.int64)
    room = (capacity - used)[:, 0] // 3
    exact = dispersed.select(capacity, used, request, room, count)
    limit, dispersed._SORT_LIMIT = dispersed._SORT_LIMIT, 0
    try:
        level = dispersed.select(capacity, used, request, room, count)
    finally:
        dispersed._SORT_LIMIT = limit
    assert level.sum() == exact.sum()
    assert sorted(level.tolist()) == sorted(exact.tolist())
