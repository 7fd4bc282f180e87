"""The search for the sender that floods a shard: it is found soon, and no other is.

A test that decides freely in which windows the senders flood covers each strategy of theirs,
because the search has no randomness.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.cells.flood_search import FloodSearch, SearchResult, start_search

names = st.integers(1, 150).map(lambda count: [f"cell-{n}" for n in range(count)])
choices = st.lists(st.booleans(), max_size=60)


@dataclass
class Search:
    """A search of up to 150 windows. `floods`: how many of them were flooded."""

    result: FloodSearch | SearchResult
    floods: int = 0
    windows: list[frozenset[str]] = field(default_factory=list)

    def run(self, is_flooded: Callable[[int, frozenset[str]], bool]) -> "Search":
        """Continue to the end. `is_flooded`: in a window, by its number and allowed senders."""
        while isinstance(self.result, FloodSearch) and len(self.windows) < 150:
            allowed = self.result.allowed
            floods = is_flooded(len(self.windows), allowed)
            self.floods += floods
            self.windows.append(allowed)
            self.result = self.result.after_window(is_flooded=floods)
        return self


def search(senders: list[str], is_flooded: Callable[[int, frozenset[str]], bool]) -> Search:
    return Search(start_search(senders)).run(is_flooded)


def halvings(senders: list[str]) -> int:
    return ceil(log2(len(senders)))


def longest_block(windows: list[frozenset[str]], sender: str) -> int:
    longest = blocked = 0
    for allowed in windows:
        blocked = 0 if sender in allowed else blocked + 1
        longest = max(longest, blocked)
    return longest


@given(names, st.data())
def test_one_flooding_sender_is_found_in_few_windows(
    senders: list[str], data: st.DataObject
) -> None:
    flooding = data.draw(st.sampled_from(senders))
    found = search(senders, lambda _, allowed: flooding in allowed)
    assert found.result == SearchResult(flooding)
    assert found.floods <= halvings(senders) + 1
    assert len(found.windows) <= 3 * halvings(senders) + 5


@given(names, st.data())
def test_one_of_several_senders_that_flood_without_a_pause_is_found(
    senders: list[str], data: st.DataObject
) -> None:
    flooding = data.draw(st.sets(st.sampled_from(senders), min_size=1, max_size=5))
    found = search(senders, lambda _, allowed: bool(flooding & allowed)).result
    assert isinstance(found, SearchResult)
    assert found.sender in flooding


@given(names, choices, st.data())
def test_one_sender_floods_few_windows_until_it_is_found(
    senders: list[str], choices: list[bool], data: st.DataObject
) -> None:
    """It may pause whenever it likes."""
    flooding = data.draw(st.sampled_from(senders))

    def is_flooded(window: int, allowed: frozenset[str]) -> bool:
        return flooding in allowed and (window >= len(choices) or choices[window])

    found = search(senders, is_flooded)
    assert found.result == SearchResult(flooding)
    assert found.floods <= halvings(senders) + 1


@given(names, st.data())
def test_no_other_sender_is_found_or_blocked_for_more_than_two_windows(
    senders: list[str], data: st.DataObject
) -> None:
    """Several senders flood when they like, leave, and return, in any window and any step."""
    hostile = data.draw(st.sets(st.sampled_from(senders), max_size=4))
    others = set(senders) - hostile
    present, windows, results = set(hostile), [], []
    result = start_search(senders)
    for moves, floods, is_first_step in data.draw(
        st.lists(
            st.tuples(st.sets(st.sampled_from(senders), max_size=2), st.booleans(), st.booleans()),
            max_size=60,
        )
    ):
        if not isinstance(result, FloodSearch):
            results.append(result)
            windows.append(frozenset(others))
            result = start_search(others | present)
            continue
        windows.append(result.allowed)
        if moves & hostile:
            present ^= moves & hostile
            result = result.among(others | present)
            continue
        proves = not (is_first_step and result.is_alone)
        is_flooded = floods and proves and bool(hostile & result.allowed)
        result = result.after_window(is_flooded=is_flooded)
    assert all(one.sender is None or one.sender in hostile for one in results)
    assert all(longest_block(windows, sender) <= 2 for sender in others)


@given(names, choices, st.data())
def test_sender_that_leaves_and_returns_floods_few_windows_each_time(
    senders: list[str], choices: list[bool], data: st.DataObject
) -> None:
    flooding = data.draw(st.sampled_from(senders))
    result = start_search(senders)
    moves = floods = 0
    is_present = True
    for moves_now in choices:
        if not isinstance(result, FloodSearch):
            break
        if moves_now:
            moves += 1
            is_present = not is_present
            result = result.among(set(senders) - (set() if is_present else {flooding}))
            continue
        is_flooded = is_present and flooding in result.allowed
        floods += is_flooded
        result = result.after_window(is_flooded=is_flooded)
    assert floods <= (moves + 1) * (halvings(senders) + 3)


@given(names, st.data())
def test_sender_that_floods_only_in_the_first_step_is_soon_alone_and_not_found(
    senders: list[str], data: st.DataObject
) -> None:
    """It may be the backlog that it kept while it was blocked. It does not harm the others."""
    busy = data.draw(st.sampled_from(senders))
    result = start_search(senders)
    harmed = 0
    for _ in range(6 * halvings(senders) + 12):
        assert isinstance(result, FloodSearch)
        is_flooded = busy in result.allowed
        harmed += is_flooded and len(result.allowed) > 1
        result = result.after_window(is_flooded=is_flooded and not result.is_alone)
    assert isinstance(result, FloodSearch)
    assert set(result.parts) == {frozenset({busy}), frozenset(senders) - {busy}} - {frozenset()}
    assert harmed <= halvings(senders)


@given(names)
def test_flood_of_another_login_finds_no_sender(senders: list[str]) -> None:
    found = search(senders, lambda _, allowed: True)
    assert found.result == SearchResult(None)


def test_shard_without_senders_has_nothing_to_search() -> None:
    assert start_search([]) == SearchResult(None)
    search = start_search(["a"])
    assert isinstance(search, FloodSearch)
    assert search.among([]) == SearchResult(None)


def test_two_senders_that_alternate_are_not_found_and_block_no_other() -> None:
    """A limit of the search: the newest flood decides which part is divided."""
    senders = [f"cell-{n}" for n in range(20)]
    flooding, windows, floods = {senders[0], senders[19]}, [], 0
    result = start_search(senders)
    for _ in range(200):
        assert isinstance(result, FloodSearch)
        windows.append(result.allowed)
        # As soon as the part of one is small, the other floods.
        is_flooded = bool(flooding & result.allowed) and len(result.allowed) > 5
        floods += is_flooded
        result = result.after_window(is_flooded=is_flooded)
    assert floods > 50
    assert all(longest_block(windows, sender) <= 2 for sender in senders)
