"""Interactive sessions: they end with the program, at their lifetime, or when idle."""

from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms, Refusal
from controlplane.domain.state.transitions import Event


class InteractiveHook:
    """Sessions: with an idle limit and a lifetime, if the submitter gives them."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms unchanged. Raise Refusal for a health check."""
        if terms.has_health_check:
            raise Refusal("health_check", "is only valid for kind inference")
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Return the reported event; an end by idleness or lifetime does not call the hook."""
        return end.event
