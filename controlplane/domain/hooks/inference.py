"""Inference services: RUNNING once the health check passed, and always restarted."""

from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms, Refusal
from controlplane.domain.state.transitions import Event


class InferenceHook:
    """Services, which do not end by themselves."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms. Raise Refusal without a health check, or for limits of other kinds."""
        if not terms.has_health_check:
            raise Refusal("health_check", "is required for kind inference")
        for field in ("idle_timeout_seconds", "lifetime_seconds"):
            if getattr(terms, field) is not None:
                raise Refusal(field, "is only valid for kind interactive")
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Return HEALTH_FAILED, which is free of charge, for a program that ended while RUNNING.

        A kill from outside counts as an end. Before RUNNING, exit status 0 is a failure, too. A
        failure of the engine stays unchanged.
        """
        ended = end.event in (Event.EXITED_ZERO, Event.USER_FAILED)
        killed = end.event is Event.VANISHED and end.exit_code is not None
        if end.was_running and (ended or killed):
            return Event.HEALTH_FAILED
        return Event.USER_FAILED if end.event is Event.EXITED_ZERO else end.event
