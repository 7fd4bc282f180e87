"""The search for the sender that floods a shard: it is found soon, and no other is convicted."""

from collections.abc import Callable
from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.cells.flood_search import (
    FloodSearch,
    SearchResult,
    continue_search,
    start_search,
)

names = st.integers(1, 700).map(lambda count: [f"cell-{n}" for n in range(count)])


def search(senders: list[str], is_flooded: Callable[[int, frozenset[str]], bool]) -> SearchResult:
    """Search to the end. `is_flooded`: in a window, by its number and the blocked senders."""
    found = start_search(senders)
    for window in range(50):
        if isinstance(found, SearchResult):
            return found
        assert set(found.suspects) <= set(senders)
        found = continue_search(found, is_flooded=is_flooded(window, found.blocked))
    raise AssertionError("the search does not end")


@given(names, st.data())
def test_one_flooding_sender_is_found_in_few_windows(
    senders: list[str], data: st.DataObject
) -> None:
    guilty = data.draw(st.sampled_from(senders))
    windows = []

    def is_flooded(window: int, blocked: frozenset[str]) -> bool:
        windows.append(window)
        return guilty not in blocked

    assert search(senders, is_flooded) == SearchResult(guilty)
    assert len(windows) <= ceil(log2(len(senders))) + 2


@given(names, st.data())
def test_one_of_several_flooding_senders_is_found(senders: list[str], data: st.DataObject) -> None:
    guilty = data.draw(st.sets(st.sampled_from(senders), min_size=1, max_size=5))
    found = search(senders, lambda _, blocked: bool(guilty - blocked))
    assert found.culprit in guilty


@given(names, st.lists(st.booleans(), min_size=50, max_size=50), st.data())
def test_a_sender_that_does_not_flood_is_never_convicted(
    senders: list[str], pauses: list[bool], data: st.DataObject
) -> None:
    """Also if the flood pauses in the windows that its sender chooses."""
    guilty = data.draw(st.sets(st.sampled_from(senders), max_size=3))

    def is_flooded(window: int, blocked: frozenset[str]) -> bool:
        return bool(guilty - blocked) and not pauses[window]

    assert search(senders, is_flooded).culprit in guilty | {None}


@given(names)
def test_flood_of_another_login_convicts_no_sender(senders: list[str]) -> None:
    assert search(senders, lambda _, blocked: True) == SearchResult(None)


def test_shard_without_senders_has_nothing_to_search() -> None:
    assert start_search([]) == SearchResult(None)


def test_half_of_the_suspects_may_send_in_each_window() -> None:
    found = start_search([f"cell-{n}" for n in range(16)])
    sizes = []
    while isinstance(found, FloodSearch):
        assert found.allowed | found.blocked == found.senders
        sizes.append(len(found.allowed))
        found = continue_search(found, is_flooded=False)
    assert sizes == [8, 4, 2, 1, 1]
    assert found == SearchResult(None)
