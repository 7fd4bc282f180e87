"""Batch: runs to its end, once. What its exit means is what the transition table says."""

from controlplane.domain.hooks.interface import Terms
from controlplane.domain.transitions import Event


class Batch:
    """The default kind."""

    def prepare(self, terms: Terms) -> Terms:
        """As they are."""
        return terms

    def on_end(self, event: Event) -> Event:
        """What was told."""
        return event
