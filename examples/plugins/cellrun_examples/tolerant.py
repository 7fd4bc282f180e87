"""A hook: jobs of kind `tolerant` take exit status 3 for success ("nothing to do")."""

from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms
from controlplane.domain.state.transitions import Event

NOTHING_TO_DO = 3


class Tolerant:
    """As batch, except for one exit status."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """As they are."""
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Exit status 3 ends the task SUCCEEDED."""
        return Event.EXITED_ZERO if end.exit_code == NOTHING_TO_DO else end.event
