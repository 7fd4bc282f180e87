"""Built-in kinds of jobs, each with a hook. They refuse terms, but do not change them."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms, Hook, Refusal
from controlplane.domain.state.transitions import Event


class BatchHook:
    """Programs that run to completion: the default kind."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms unchanged. Raise Refusal for fields of other kinds."""
        _refuse_session_limits(terms)
        _refuse_health_check(terms)
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Return the reported event."""
        return end.event


class InteractiveHook:
    """Sessions, which end with the program, at their lifetime, or when idle."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms unchanged. Raise Refusal for a health check."""
        _refuse_health_check(terms)
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Return the reported event. Ends by a limit are not classified by hooks."""
        return end.event


class InferenceHook:
    """Services, which are RUNNING once the health check has passed, and are always restarted."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms unchanged. Raise Refusal without health check or with limits."""
        if not terms.has_health_check:
            raise Refusal("health_check", "is required for kind inference")
        _refuse_session_limits(terms)
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        """Return HEALTH_FAILED, which is not charged, for a program that ended while RUNNING.

        A kill from outside counts as such an end. Before RUNNING, exit status 0 is a user failure.
        Failures of the engine are not changed.
        """
        ended = end.event in (Event.EXITED_ZERO, Event.USER_FAILED)
        killed = end.event is Event.VANISHED and end.exit_code is not None
        if end.was_running and (ended or killed):
            return Event.HEALTH_FAILED
        return Event.USER_FAILED if end.event is Event.EXITED_ZERO else end.event


def _refuse_session_limits(terms: GroupTerms) -> None:
    for field in ("idle_timeout_seconds", "lifetime_seconds"):
        if getattr(terms, field) is not None:
            raise Refusal(field, "is only valid for kind interactive")


def _refuse_health_check(terms: GroupTerms) -> None:
    if terms.has_health_check:
        raise Refusal("health_check", "is only valid for kind inference")


BUILT_IN: Mapping[str, type[Hook]] = MappingProxyType(
    {"batch": BatchHook, "inference": InferenceHook, "interactive": InteractiveHook}
)
