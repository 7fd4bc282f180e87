"""The dispersed selector: the least utilised cell, then the larger, then by turn and name."""

import numpy as np
import pytest

from controlplane.domain.placement.model.interfaces import CellOffer, Matrix, Vector
from controlplane.domain.placement.model.shares import capacity_ranks
from controlplane.domain.placement.plugins.selectors import dispersed


def select(
    capacity: list[list[int]],
    used: list[list[int]],
    request: list[int],
    room: list[int],
    count: int,
) -> list[int]:
    """By cell; the matrices are given cell by cell."""
    offer = offer_of(matrix(*capacity), matrix(*used), vector(request), vector(room))
    return [int(given) for given in dispersed.DispersedSelector().select(offer, count)]


def offer_of(capacity: Matrix, used: Matrix, request: Vector, room: Vector) -> CellOffer:
    return CellOffer(capacity, used, request, room, capacity_ranks(capacity))


def matrix(*rows: list[int]) -> Matrix:
    return np.array(rows, dtype=np.int64).T


def vector(row: list[int]) -> Vector:
    return np.array(row, dtype=np.int64)


def test_least_utilised_cell_comes_first() -> None:
    assert select([[10], [20]], [[0], [1]], [5], [2, 3], 1) == [1, 0]
    assert select([[10], [10]], [[3], [2]], [1], [7, 8], 1) == [0, 1]
    assert select([[10], [10]], [[3], [2]], [1], [7, 8], 3) == [1, 2]
    assert select([[1], [10]], [[0], [6]], [1], [1, 4], 1) == [1, 0]


def test_larger_of_equally_utilised_cells_comes_first() -> None:
    assert select([[10], [20]], [[0], [0]], [5], [2, 4], 1) == [0, 1]
    assert select([[10, 4], [20, 8]], [[1, 2], [2, 4]], [1, 0], [9, 18], 4) == [0, 4]


def test_utilisation_is_that_of_the_scarcest_resource() -> None:
    capacity, used = [[10, 10], [10, 10]], [[6, 0], [0, 5]]
    assert select(capacity, used, [1, 1], [4, 5], 1) == [0, 1]


def test_resource_without_capacity_does_not_count() -> None:
    assert select([[10, 0], [10, 10]], [[5, 0], [4, 9]], [1, 0], [5, 6], 1) == [1, 0]
    # What is held of what is not there any more makes a cell no fuller.
    assert select([[10, 0], [10, 10]], [[3, 7], [4, 0]], [1, 0], [5, 6], 1) == [1, 0]


def test_ties_go_to_the_cell_with_fewer_tasks_then_to_the_first() -> None:
    assert select([[10]] * 3, [[0]] * 3, [1], [9] * 3, 4) == [2, 1, 1]
    assert select([[1]] * 3, [[0]] * 3, [0], [9] * 3, 5) == [2, 2, 1]
    assert select([[1], [2], [2]], [[0]] * 3, [0], [9] * 3, 5) == [0, 3, 2]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_selector_places_the_requested_count_within_the_room(count: int) -> None:
    found = select([[10], [10]], [[0], [0]], [1], [2, 3], count)
    assert sum(found) == count
    assert found[0] <= 2
    assert found[1] <= 3


@pytest.fixture
def by_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Always find the common level first."""
    monkeypatch.setattr(dispersed, "_FEW", 0)


@pytest.mark.usefixtures("by_level")
@pytest.mark.parametrize(
    ("capacity", "used", "request_", "room", "count"),
    [
        ([[100], [200], [50]], [[10], [0], [25]], [3], [30, 66, 8], 40),
        ([[100], [200], [50]], [[10], [0], [25]], [3], [30, 66, 8], 104),
        ([[100, 10], [100, 50]], [[0, 9], [0, 10]], [2, 0], [50, 50], 30),
        ([[100, 0], [100, 50]], [[0, 0], [0, 10]], [2, 0], [50, 50], 33),
        ([[100, 10], [100, 10]], [[0, 0], [60, 0]], [2, 1], [10, 10], 13),
        ([[7], [7]], [[0], [0]], [0], [20, 20], 15),
        ([[10], [10]], [[12], [0]], [1], [0, 10], 5),
        ([[100]] * 3, [[0]] * 3, [1], [1, 99, 99], 102),
    ],
)
def test_common_level_equals_placing_one_by_one(
    capacity: list[list[int]],
    used: list[list[int]],
    request_: list[int],
    room: list[int],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    level = select(capacity, used, request_, room, count)
    monkeypatch.setattr(dispersed, "_FEW", 10**9)
    assert level == select(capacity, used, request_, room, count)


def below(
    level: float,
    capacity: list[list[int]],
    used: list[list[int]],
    request: list[int],
    room: list[int],
) -> list[int]:
    requested = vector(request)
    offer = offer_of(matrix(*capacity), matrix(*used), requested, vector(room))
    is_requested = requested > 0
    return dispersed._below(
        offer, is_requested, requested[is_requested, None], offer.room, level
    ).tolist()


def test_number_of_tasks_below_a_level() -> None:
    assert below(0.5, [[100]], [[10]], [4], [99]) == [10]
    assert below(0.51, [[100]], [[10]], [4], [99]) == [11]
    assert below(0.5, [[100]], [[10]], [4], [7]) == [7]
    assert below(0.1, [[100]], [[10]], [4], [99]) == [0]
    assert below(0.05, [[100]], [[10]], [4], [99]) == [0]
    assert below(0.5, [[100, 100]], [[0, 60]], [4, 0], [99]) == [0]
    assert below(0.5, [[100, 100]], [[0, 50]], [4, 0], [99]) == [0]
    assert below(0.5, [[100, 100]], [[0, 49]], [4, 0], [99]) == [13]
    assert below(0.5, [[100, 100]], [[0, 0]], [4, 10], [99]) == [5]


def test_cell_above_the_level_does_not_block_other_cells() -> None:
    assert below(0.5, [[100, 10], [100, 50]], [[0, 9], [0, 10]], [2, 0], [50, 50]) == [0, 25]


def test_common_level_stays_just_below_the_count() -> None:
    capacity, used = matrix([1000], [1000], [500]), matrix([0], [100], [0])
    offer = offer_of(capacity, used, vector([7]), vector([142, 128, 71]))
    for count in (1, 50, 200, 340):
        given = dispersed._common_level(offer, offer.room, count)
        assert count - 3 <= given.sum() <= count
