"""Interactive sessions: they end with the program, at their lifetime, or when idle."""

from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms, Refusal
from controlplane.domain.state.transitions import Event


class InteractiveHook:
    """Sessions: with an idle limit and a lifetime, if the submitter gives them."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """As they are. Raise Refusal of a health check."""
        if terms.has_health_check:
            raise Refusal("health_check", "means something only for kind inference")
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Return what was told; an end by idleness or lifetime is none that a hook is asked
        about.
        """
        return end.event
