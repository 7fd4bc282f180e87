"""A hook: for jobs of kind `tolerant`, exit status 3 ("nothing to do") is a success."""

from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms
from controlplane.domain.state.transitions import Event

NOTHING_TO_DO = 3


class Tolerant:
    """Hook like that of `batch`, except for one exit status."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms unchanged."""
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Return EXITED_ZERO for exit status 3, otherwise the reported event."""
        return Event.EXITED_ZERO if end.exit_code == NOTHING_TO_DO else end.event
