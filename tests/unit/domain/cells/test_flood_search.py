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
    """A search of up to 150 windows. `floods`: how many of them had a flood that narrows."""

    result: FloodSearch | SearchResult
    floods: int = 0
    windows: list[frozenset[str]] = field(default_factory=list)

    def run(self, is_flooded: Callable[[int, frozenset[str]], bool]) -> "Search":
        """Continue to the end. `is_flooded`: in a window, by its number and allowed senders."""
        while isinstance(self.result, FloodSearch) and len(self.windows) < 150:
            allowed = self.result.allowed
            narrows = is_flooded(len(self.windows), allowed) and self.result.narrows
            self.floods += narrows
            self.windows.append(allowed)
            self.result = self.result.after_window(is_flooded=narrows)
        return self


def search(senders: list[str], is_flooded: Callable[[int, frozenset[str]], bool]) -> Search:
    return Search(start_search(senders)).run(is_flooded)


def halvings(senders: list[str]) -> int:
    return ceil(log2(len(senders)))


@given(names, st.data())
def test_one_flooding_sender_is_found_in_few_windows(
    senders: list[str], data: st.DataObject
) -> None:
    flooding = data.draw(st.sampled_from(senders))
    found = search(senders, lambda _, allowed: flooding in allowed)
    assert found.result == SearchResult(flooding)
    assert found.floods <= halvings(senders) + 1
    assert len(found.windows) <= 3 * halvings(senders) + 3


@given(names, st.data())
def test_one_of_several_flooding_senders_is_found(senders: list[str], data: st.DataObject) -> None:
    flooding = data.draw(st.sets(st.sampled_from(senders), min_size=1, max_size=5))
    found = search(senders, lambda _, allowed: bool(flooding & allowed)).result
    assert isinstance(found, SearchResult)
    assert found.sender in flooding


@given(names, choices, st.data())
def test_a_sender_that_does_not_flood_is_never_found(
    senders: list[str], choices: list[bool], data: st.DataObject
) -> None:
    """Whatever several others do."""
    flooding = data.draw(st.sets(st.sampled_from(senders), max_size=4))

    def is_flooded(window: int, allowed: frozenset[str]) -> bool:
        return bool(flooding & allowed) and window < len(choices) and choices[window]

    found = search(senders, is_flooded).result
    assert isinstance(found, FloodSearch) or found.sender in flooding


@given(names, choices, st.data())
def test_one_or_two_senders_flood_few_windows_before_one_is_found(
    senders: list[str], choices: list[bool], data: st.DataObject
) -> None:
    """They may pause, or flood only if the other may or may not send, to avoid being found."""
    flooding = data.draw(st.sets(st.sampled_from(senders), min_size=1, max_size=2))

    def is_flooded(window: int, allowed: frozenset[str]) -> bool:
        return bool(flooding & allowed) and (window >= len(choices) or choices[window])

    found = search(senders, is_flooded)
    assert isinstance(found.result, SearchResult)
    assert found.result.sender in flooding
    assert found.floods <= len(flooding) * (halvings(senders) + 2) - 1


@given(names, choices, st.data())
def test_each_sender_may_send_in_each_round(
    senders: list[str], choices: list[bool], data: st.DataObject
) -> None:
    """With one flooding sender a round has three windows, and with two of them five."""
    flooding = data.draw(st.sets(st.sampled_from(senders), max_size=2))
    sender = data.draw(st.sampled_from(senders))

    def is_flooded(window: int, allowed: frozenset[str]) -> bool:
        return bool(flooding & allowed) and window < len(choices) and choices[window]

    windows = [one for one in search(senders, is_flooded).windows if one]
    length = 3 if len(flooding) < 2 else 5
    for start in range(len(windows) - length + 1):
        assert any(sender in one for one in windows[start : start + length])


@given(names, st.integers(1, 100))
def test_busy_shard_without_a_flooding_sender_is_soon_quiet(senders: list[str], many: int) -> None:
    """Many senders together exceed the limit, and no single one does."""
    found = search(senders, lambda _, allowed: len(allowed) > many)
    assert isinstance(found.result, FloodSearch)
    assert found.floods <= 2 * (halvings(senders) + 2)


@given(names)
def test_flood_of_another_login_finds_no_sender(senders: list[str]) -> None:
    found = search(senders, lambda _, allowed: True)
    assert found.result == SearchResult(None)


def test_shard_without_senders_has_nothing_to_search() -> None:
    assert start_search([]) == SearchResult(None)


@given(names, choices, st.data())
def test_search_among_other_senders_keeps_its_groups(
    senders: list[str], choices: list[bool], data: st.DataObject
) -> None:
    flooding = senders[len(senders) // 2]
    first = start_search(senders)
    assert isinstance(first, FloodSearch)
    for is_flooded in choices:
        if len(first.allowed) > 1:
            first = first.after_window(is_flooded=is_flooded and flooding in first.allowed)
            assert isinstance(first, FloodSearch)
    removed = data.draw(st.sets(st.sampled_from(senders))) - {flooding}
    others = [*(set(senders) - removed), "another"]
    second = start_search(others, first.groups)
    assert isinstance(second, FloodSearch)
    assert second.senders == set(others)
    assert all(group <= second.senders for group in second.groups)
    found = Search(second).run(lambda _, allowed: flooding in allowed)
    assert found.result == SearchResult(flooding)
    assert found.floods <= ceil(log2(max(map(len, second.groups)))) + 1
