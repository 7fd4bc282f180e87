"""Find the cell that floods a shard of the inbox, without its messages.

Redis does not count what each user sends, and a message without a valid MAC does not prove its
sender. So in each window only half of the suspects may send. If the shard is flooded nevertheless,
a sender of this half floods it, otherwise one of the other half. A single suspect is convicted only
if the shard is flooded while it alone may send, and not while none may.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloodSearch:
    """A window of a search among the senders of a shard.

    `allowed`: the suspects that may send. `accused`: the suspect that floods alone; in its last
    window none may send.
    """

    senders: frozenset[str]
    suspects: tuple[str, ...]
    allowed: frozenset[str]
    accused: str | None = None

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
    return _next_window(frozenset(suspects), suspects)


def continue_search(search: FloodSearch, *, is_flooded: bool) -> FloodSearch | SearchResult:
    """Return the next window. `is_flooded`: the shard was flooded by the senders in `allowed`."""
    if search.accused is not None:
        return SearchResult(None if is_flooded else search.accused)
    if is_flooded and len(search.allowed) == 1:
        return FloodSearch(search.senders, search.suspects, frozenset(), *search.allowed)
    suspects = tuple(name for name in search.suspects if (name in search.allowed) == is_flooded)
    return _next_window(search.senders, suspects)


def _next_window(senders: frozenset[str], suspects: tuple[str, ...]) -> FloodSearch | SearchResult:
    """Return a window in which half of the suspects may send; the end without suspects."""
    if not suspects:
        return SearchResult(None)
    return FloodSearch(senders, suspects, frozenset(suspects[: (len(suspects) + 1) // 2]))
