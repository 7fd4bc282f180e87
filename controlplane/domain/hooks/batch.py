"""Batch: programs that run to completion. The transition table decides what an exit means."""

from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms, Refusal
from controlplane.domain.state.transitions import Event


class BatchHook:
    """The default kind."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms unchanged. Raise Refusal for fields of other kinds."""
        for field in ("idle_timeout_seconds", "lifetime_seconds"):
            if getattr(terms, field) is not None:
                raise Refusal(field, "is only valid for kind interactive")
        if terms.has_health_check:
            raise Refusal("health_check", "is only valid for kind inference")
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Return the reported event."""
        return end.event
