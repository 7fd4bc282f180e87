"""Each selector gives in one step what the plain rule gives task by task, with all that it must."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.placement.model.interfaces import CellOffer, Selector
from controlplane.domain.placement.model.shares import capacity_ranks
from controlplane.domain.placement.plugins.selectors import BUILT_IN
from tests.harness.drawn import examples

MANY = settings(max_examples=examples(150))
# (cells that have room left, what is given so far, the offer) -> the cell that gets the next task.
Rule = Callable[[Sequence[int], list[int], CellOffer], int]


@st.composite
def offers(draw: st.DrawFn, most: int = 30) -> tuple[CellOffer, int]:
    """Up to six cells with two resources, of which one may be missing; and how many tasks go.

    Sizes and loads are often alike, so that ties are common.
    """
    cells = draw(st.integers(1, 6))
    if draw(st.booleans()):
        most = draw(st.sampled_from([1, 2, 4]))
    sizes = st.lists(st.integers(0, most), min_size=cells, max_size=cells)
    capacity = np.array([draw(sizes), draw(sizes)], dtype=np.int64)
    used = np.array(
        [[draw(st.integers(0, amount + 2)) for amount in line] for line in capacity.tolist()],
        dtype=np.int64,
    )
    request = np.array([draw(st.integers(0, 4)), draw(st.integers(0, 4))], dtype=np.int64)
    is_requested = request > 0
    free = np.maximum(capacity - used, 0)
    if is_requested.any():
        room = (free[is_requested] // request[is_requested, None]).min(axis=0)
    else:
        room = np.array(draw(sizes), dtype=np.int64)
    blocked = draw(st.lists(st.booleans(), min_size=cells, max_size=cells))
    room = np.where(blocked, 0, room)
    start = draw(st.integers(0, cells - 1))
    offer = CellOffer(capacity, used, request, room, capacity_ranks(capacity), start)
    return offer, draw(st.integers(0, int(room.sum())))


def utilisation(offer: CellOffer, cell: int, tasks: int) -> Fraction:
    """The share in use of the cell's scarcest resource, with so many of the tasks on it."""
    shares = [
        Fraction(int(used) + tasks * int(each), int(most))
        for used, each, most in zip(
            offer.used[:, cell], offer.request, offer.capacity[:, cell], strict=True
        )
        if most
    ]
    return max(shares, default=Fraction(0))


def total_capacity(offer: CellOffer, cell: int) -> Fraction:
    """The sum, over the resources, of the share that the cell has of all cells' capacity."""
    return sum(
        (Fraction(int(line[cell]), int(line.sum())) for line in offer.capacity if line.any()),
        Fraction(0),
    )


# The rules are in the words of Backend.AI: "preferentially selects agents with low (high) current
# resource utilization, and if utilization is equal, selects agents with larger (smaller) total
# resource capacity". Each task counts as in use for the next one. Order by name decides the rest;
# dispersed gives to the cell that got fewer of these tasks before that.


def dispersed(cells: Sequence[int], given_: list[int], offer: CellOffer) -> int:
    return min(
        cells,
        key=lambda c: (
            utilisation(offer, c, given_[c]),
            -total_capacity(offer, c),
            given_[c],
            c,
        ),
    )


def concentrated(cells: Sequence[int], given_: list[int], offer: CellOffer) -> int:
    return min(
        cells, key=lambda c: (-utilisation(offer, c, given_[c]), total_capacity(offer, c), c)
    )


def round_robin(cells: Sequence[int], given_: list[int], offer: CellOffer) -> int:
    # No cell gets its next task before every other cell that can has got its own.
    count = len(given_)
    return min(cells, key=lambda c: (given_[c], (c - offer.start) % count))


RULES: dict[str, Rule] = {
    "dispersed": dispersed,
    "concentrated": concentrated,
    "round_robin": round_robin,
}


def one_by_one(rule: Rule, offer: CellOffer, count: int) -> list[int]:
    """What the rule gives, task by task."""
    given_ = [0] * len(offer.room)
    for _ in range(count):
        cells = [cell for cell, room in enumerate(offer.room.tolist()) if given_[cell] < room]
        given_[rule(cells, given_, offer)] += 1
    return given_


def test_every_selector_has_a_reference_rule() -> None:
    assert RULES.keys() == BUILT_IN.keys()


@pytest.mark.parametrize("name", RULES)
@MANY
@given(offers())
def test_one_step_equals_placing_one_task_after_another(
    name: str, case: tuple[CellOffer, int]
) -> None:
    offer, count = case
    found = BUILT_IN[name]().select(offer, min(count, 64))
    assert found.tolist() == one_by_one(RULES[name], offer, min(count, 64))


@pytest.mark.parametrize("name", RULES)
@MANY
@given(offers(most=300))
def test_one_step_for_many_tasks_equals_placing_one_after_another(
    name: str, case: tuple[CellOffer, int]
) -> None:
    assert BUILT_IN[name]().select(*case).tolist() == one_by_one(RULES[name], *case)


def test_capacity_rank_is_independent_of_units_and_order() -> None:
    cores_and_memory = np.array([[8, 4, 2, 6], [16, 24, 28, 20], [0, 0, 0, 0]], dtype=np.int64)
    ranks = capacity_ranks(cores_and_memory).tolist()
    # The sums of the shares are 8/20 + 16/88, 4/20 + 24/88, 2/20 + 28/88, 6/20 + 20/88
    assert ranks == [3, 1, 0, 2]
    assert capacity_ranks(cores_and_memory[::-1] * 1000).tolist() == ranks
    assert capacity_ranks(cores_and_memory[:, ::-1]).tolist() == ranks[::-1]


def test_total_capacities_that_are_equal_share_a_rank() -> None:
    # 1/10 + 2/10 + 7/10 is not 7/10 + 1/10 + 2/10 in floating point.
    capacity = np.array([[1, 7, 2], [2, 1, 7], [7, 2, 1]], dtype=np.int64)
    assert capacity_ranks(capacity).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", RULES)
@given(offers())
def test_selector_does_not_change_its_input(name: str, case: tuple[CellOffer, int]) -> None:
    offer, count = case
    before = [column.copy() for column in (offer.capacity, offer.used, offer.request, offer.room)]
    selector: Selector = BUILT_IN[name]()
    selector.select(offer, count)
    now = (offer.capacity, offer.used, offer.request, offer.room)
    assert all((old == new).all() for old, new in zip(before, now, strict=True))
