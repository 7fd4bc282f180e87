"""Find the cell that fills a shard of the inbox, whatever its messages contain.

Redis does not count what each user sends, and a message without a valid MAC does not prove its
sender. So in each window only half of the suspects may send. If the shard is flooded nevertheless,
a sender of this half floods it, otherwise one of the other half. A single suspect is convicted only
by a flood while it alone may send.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloodSearch:
    """A window of a search among the senders of a shard. `allowed`: the suspects that may send."""

    senders: frozenset[str]
    suspects: tuple[str, ...]
    allowed: frozenset[str]

    @property
    def blocked(self) -> frozenset[str]:
        """Return the senders that may not send in this window."""
        return self.senders - self.allowed


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search; `culprit` is None if no sender was convicted."""

    culprit: str | None


def start_search(senders: Iterable[str]) -> FloodSearch | SearchResult:
    """Return the first window of a search among senders."""
    suspects = tuple(sorted(senders))
    return _test(frozenset(suspects), suspects)


def continue_search(search: FloodSearch, *, is_flooded: bool) -> FloodSearch | SearchResult:
    """Return the next window. `is_flooded`: the shard was flooded by the senders in `allowed`."""
    if is_flooded and len(search.allowed) == 1:
        return SearchResult(*search.allowed)
    suspects = tuple(name for name in search.suspects if (name in search.allowed) == is_flooded)
    return _test(search.senders, suspects)


def _test(senders: frozenset[str], suspects: tuple[str, ...]) -> FloodSearch | SearchResult:
    if not suspects:
        return SearchResult(None)
    return FloodSearch(senders, suspects, frozenset(suspects[: (len(suspects) + 1) // 2]))
