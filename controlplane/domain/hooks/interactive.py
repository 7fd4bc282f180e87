"""Interactive: somebody works with it, until its program ends, or its time, or nothing happens."""

from controlplane.domain.hooks.interface import End, Refusal, Terms
from controlplane.domain.state.transitions import Event


class Interactive:
    """Sessions: with an idle limit and a lifetime, if the submitter gives them."""

    def prepare(self, terms: Terms) -> Terms:
        """As they are. Raises Refusal of a health check."""
        if terms.has_health_check:
            raise Refusal("health_check", "means something only for kind inference")
        return terms

    def on_end(self, end: End) -> Event:
        """What was told; an end by idleness or lifetime is none that a hook is asked about."""
        return end.event
