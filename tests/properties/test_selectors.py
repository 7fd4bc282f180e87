"""Each selector gives in one step what the plain rule gives task by task, with all that it must."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.placement.interfaces import Offer, Selector
from controlplane.domain.placement.selectors import BUILT_IN

MANY = settings(max_examples=150)
# (cells that have room left, what is given so far, the offer) -> the cell that gets the next task.
Rule = Callable[[Sequence[int], list[int], Offer], int]


@st.composite
def offers(draw: st.DrawFn, most: int = 30) -> tuple[Offer, int]:
    """Up to six cells with two resources, of which one may be missing; and how many tasks go."""
    cells = draw(st.integers(1, 6))
    sizes = st.lists(st.integers(0, most), min_size=cells, max_size=cells)
    capacity = np.array([draw(sizes), draw(sizes)], dtype=np.int64)
    used = np.array(
        [[draw(st.integers(0, amount + 2)) for amount in line] for line in capacity.tolist()],
        dtype=np.int64,
    )
    request = np.array([draw(st.integers(0, 4)), draw(st.integers(0, 4))], dtype=np.int64)
    asked = request > 0
    free = np.maximum(capacity - used, 0)
    if asked.any():
        room = (free[asked] // request[asked, None]).min(axis=0)
    else:
        room = np.array(draw(sizes), dtype=np.int64)
    blocked = draw(st.lists(st.booleans(), min_size=cells, max_size=cells))
    room = np.where(blocked, 0, room)
    offer = Offer(capacity, used, request, room, draw(st.integers(0, cells - 1)))
    return offer, draw(st.integers(0, int(room.sum())))


def after(offer: Offer, cell: int, tasks: int) -> float:
    """How utilised a cell is with so many of the tasks."""
    shares = [
        (int(offer.used[n, cell]) + tasks * int(offer.request[n])) / int(offer.capacity[n, cell])
        for n in range(len(offer.request))
        if offer.capacity[n, cell]
    ]
    return max(shares, default=0.0)


def dispersed(cells: Sequence[int], given_: list[int], offer: Offer) -> int:
    return min(cells, key=lambda c: (after(offer, c, given_[c] + 1), given_[c], c))


def concentrated(cells: Sequence[int], given_: list[int], offer: Offer) -> int:
    return min(cells, key=lambda c: (-after(offer, c, given_[c] + 1), c))


def round_robin(cells: Sequence[int], given_: list[int], offer: Offer) -> int:
    # Nobody has his next one before all who can have had theirs.
    count = len(given_)
    return min(cells, key=lambda c: (given_[c], (c - offer.start) % count))


RULES: dict[str, Rule] = {
    "dispersed": dispersed,
    "concentrated": concentrated,
    "round_robin": round_robin,
}


def one_by_one(rule: Rule, offer: Offer, count: int) -> list[int]:
    """What the rule gives, task by task."""
    given_ = [0] * len(offer.room)
    for _ in range(count):
        cells = [cell for cell, room in enumerate(offer.room.tolist()) if given_[cell] < room]
        given_[rule(cells, given_, offer)] += 1
    return given_


def test_there_is_a_rule_for_each_selector() -> None:
    assert RULES.keys() == BUILT_IN.keys()


@pytest.mark.parametrize("name", RULES)
@MANY
@given(offers())
def test_one_step_gives_what_one_task_after_the_other_gives(
    name: str, case: tuple[Offer, int]
) -> None:
    offer, count = case
    found = BUILT_IN[name]().select(offer, min(count, 64))
    assert found.tolist() == one_by_one(RULES[name], offer, min(count, 64))


@pytest.mark.parametrize("name", ["concentrated", "round_robin"])
@MANY
@given(offers(most=300))
def test_so_does_one_step_for_very_many(name: str, case: tuple[Offer, int]) -> None:
    assert BUILT_IN[name]().select(*case).tolist() == one_by_one(RULES[name], *case)


@MANY
@given(offers(most=300))
def test_very_many_are_spread_so_that_no_task_had_better_gone_elsewhere(
    case: tuple[Offer, int],
) -> None:
    """Filling to a common level first may break ties otherwise than task by task does."""
    offer, count = case
    found: list[int] = BUILT_IN["dispersed"]().select(offer, count).tolist()
    assert sum(found) == count
    for cell, given_ in enumerate(found):
        assert 0 <= given_ <= offer.room[cell]
        for other in range(len(found)):
            if given_ and found[other] < offer.room[other]:
                better = after(offer, other, found[other] + 1)
                assert after(offer, cell, given_) <= better + 1e-9


@pytest.mark.parametrize("name", RULES)
@given(offers())
def test_nothing_given_changes_what_was_offered(name: str, case: tuple[Offer, int]) -> None:
    offer, count = case
    before = [column.copy() for column in (offer.capacity, offer.used, offer.request, offer.room)]
    selector: Selector = BUILT_IN[name]()
    selector.select(offer, count)
    now = (offer.capacity, offer.used, offer.request, offer.room)
    assert all((old == new).all() for old, new in zip(before, now, strict=True))
