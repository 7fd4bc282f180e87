"""Find the cell that floods a shard of the inbox, without its messages.

Redis does not count what each user sends, and a message without a valid MAC does not prove its
sender. So in each window only a part of the senders may send. If the shard is flooded nevertheless,
a sender of this part floods it. A window without a flood proves nothing: the sender may pause. A
single sender is found only if the shard is flooded while it alone may send, and not while none may.

Every flood in a window halves a group, or proves that there is another, so one of the senders that
flood is found unless they end their floods, whatever they know about the search.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

MAX_GROUPS = 2
"""A round has a window for each half of a group. With more groups, a sender would wait for its
window until its lease is over.
"""


@dataclass(frozen=True, slots=True)
class FloodSearch:
    """A window of a search among the senders of a shard.

    `groups`: they are disjoint, and a sender of each floods the shard. `window`: the index in the
    round. `candidate`: the sender that flooded alone; in its last window none may send.
    """

    senders: frozenset[str]
    groups: tuple[frozenset[str], ...]
    window: int = 0
    candidate: str | None = None

    @property
    def windows(self) -> list[frozenset[str]]:
        """Return the senders of each window: those outside all groups, then halves of groups."""
        rest = self.senders.difference(*self.groups)
        halves = [half for group in self.groups for half in _halves(group)]
        return [part for part in (rest, *halves) if part]

    @property
    def allowed(self) -> frozenset[str]:
        """Return the senders that may send in this window."""
        return frozenset() if self.candidate is not None else self.windows[self.window]

    @property
    def narrows(self) -> bool:
        """Return whether a flood in this window narrows the search: not if it adds a third group.

        A busy shard, in which many senders exceed the limit of a flood, is searched no further.
        """
        return len(self.allowed) <= 1 or len(self._groups_after_flood) <= MAX_GROUPS

    @property
    def _groups_after_flood(self) -> tuple[frozenset[str], ...]:
        """Return the groups, with the allowed senders in place of the one that contains them."""
        return *(group for group in self.groups if not self.allowed <= group), self.allowed

    def after_window(self, *, is_flooded: bool) -> "FloodSearch | SearchResult":
        """Return the next window. `is_flooded`: the shard was flooded, and that narrows."""
        if self.candidate is not None:
            return SearchResult(None if is_flooded else self.candidate)
        if not is_flooded:
            return replace(self, window=(self.window + 1) % len(self.windows))
        if len(self.allowed) == 1:
            return replace(self, candidate=min(self.allowed))
        # The rest is next, and the new group last, so that no part waits longer than a round.
        return FloodSearch(self.senders, self._groups_after_flood)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The end of a search; `sender` is None if none was found."""

    sender: str | None


def start_search(
    senders: Collection[str], groups: Iterable[frozenset[str]] = ()
) -> FloodSearch | SearchResult:
    """Return the first window of a search; `groups`: those of a search among other senders."""
    if not senders:
        return SearchResult(None)
    every = frozenset(senders)
    return FloodSearch(every, tuple(filter(None, (group & every for group in groups))) or (every,))


def _halves(group: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    ordered = sorted(group)
    middle = (len(ordered) + 1) // 2
    return frozenset(ordered[:middle]), frozenset(ordered[middle:])
