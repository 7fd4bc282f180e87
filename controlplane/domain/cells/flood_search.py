"""Find the cell that floods a shard of the inbox, without its messages.

Redis does not count what each user sends, and a message without a valid MAC does not prove its
sender. So in each window only a part of the senders may send. If the shard is flooded nevertheless,
a sender of this part floods it, and the part is divided into halves. A window without a flood
proves nothing: the sender may pause. A single sender is found only if the shard is flooded while it
alone may send, and not while none may.

There are at most three parts, and their windows take turns. So no sender is blocked for more than
two windows, whatever the others do.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class FloodSearch:
    """A window of a search among the senders of a shard.

    `parts`: they are disjoint; the senders of the first may send, and the others have waited longer
    the earlier they follow. `group`: senders of the part that was divided last, which have had no
    window since: until then, a flood of the others divides nothing. `is_check`: the first part is a
    single sender that flooded, and none may send.
    """

    parts: tuple[frozenset[str], ...]
    group: frozenset[str] = frozenset()
    is_check: bool = False

    @property
    def senders(self) -> frozenset[str]:
        """Return the senders of all parts."""
        return frozenset[str]().union(*self.parts)

    @property
    def allowed(self) -> frozenset[str]:
        """Return the senders that may send in this window."""
        return frozenset() if self.is_check else self.parts[0]

    @property
    def is_alone(self) -> bool:
        """Return whether a single sender may send, and all others have the other window.

        Then a flood in the first step proves nothing: a cell that was blocked sends its backlog.
        """
        return len(self.allowed) == 1 and len(self.parts) <= 2

    def after_window(self, *, is_flooded: bool) -> "FloodSearch | SearchResult":
        """Return the next window, or the end."""
        first, *others = self.parts
        if self.is_check:
            return SearchResult(None if is_flooded else min(first))
        # If several senders flood without a pause, the search narrows to one, and then to the next.
        is_later = bool(self.group) and not self.group & first
        if not is_flooded or is_later:
            return FloodSearch((*others, first), self.group - first)
        if self.is_alone:
            return replace(self, is_check=True)
        rest = frozenset[str]().union(*others)
        return FloodSearch((rest, *_halves(first)) if rest else _halves(first), first)

    def among(self, senders: Collection[str]) -> "FloodSearch | SearchResult":
        """Return the next window if the senders are others now; this one proves nothing."""
        first, *others = self.parts
        kept = [part.intersection(senders) for part in (*others, first)]
        # New senders join the largest part, so that one that is alone remains so.
        largest = max(range(len(kept)), key=lambda index: len(kept[index]))
        kept[largest] |= frozenset(senders) - self.senders
        parts = tuple(part for part in kept if part)
        return FloodSearch(parts, self.group - first) if parts else SearchResult(None)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search; `sender` is None if none was found."""

    sender: str | None


def start_search(senders: Collection[str]) -> FloodSearch | SearchResult:
    """Return the first window of a search: one of two halves."""
    parts = _halves(frozenset(senders))
    return FloodSearch(parts) if parts else SearchResult(None)


def _halves(part: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Return two halves, or one if the other is empty."""
    ordered = sorted(part)
    middle = (len(ordered) + 1) // 2
    return tuple(frozenset(half) for half in (ordered[:middle], ordered[middle:]) if half)
