"""Inputs of hook calls, and the parts of an order that hooks affect; pure."""

from collections.abc import Callable
from typing import Any

from controlplane.contract.codec import clean_text
from controlplane.contract.messages.health import HealthCheck
from controlplane.contract.states import TaskState
from controlplane.domain.hooks.interface import AttemptEnd, Hook
from controlplane.domain.state.transitions import Event, is_legal
from controlplane.spec import TaskGroupSpec
from controlplane.spec.services import HealthCheck as HealthCheckSpec

MAX_ERROR_TEXT = 1000
"""Characters of the description of an error of a hook."""


def describe_error(error: BaseException, form: Callable[[object], str] = repr) -> str:
    """Return a text of the error that can be stored, though its own methods may raise."""
    try:
        text = form(error)
    except Exception:
        text = type(error).__name__
    return clean_text(text, MAX_ERROR_TEXT)


def told_of(group: TaskGroupSpec) -> dict[str, Any]:
    """Return the limits, ports and health check of an order, without those that are not set."""
    options: dict[str, Any] = {
        name: getattr(group, name)
        for name in ("timeout_seconds", "idle_timeout_seconds", "lifetime_seconds")
        if getattr(group, name) is not None
    }
    if group.ports:
        options["ports"] = list(group.ports)
    if group.health_check is not None:
        options["health_check"] = _health_check_of(group.health_check).body()
    return options


def _health_check_of(check: HealthCheckSpec) -> HealthCheck:
    return HealthCheck(
        command=tuple(check.command or ()),
        port=check.http.port if check.http is not None else None,
        path=check.http.path if check.http is not None else "/",
        interval_seconds=check.interval_seconds,
        timeout_seconds=check.timeout_seconds,
        retries=check.retries,
        start_period_seconds=check.start_period_seconds,
    )


def longest_of(group: TaskGroupSpec) -> float | None:
    """Return how long an attempt may be RUNNING at most, in seconds; None: without limit."""
    limits = (group.timeout_seconds, group.lifetime_seconds)
    return min((limit for limit in limits if limit is not None), default=None)


def is_lifetime(group: TaskGroupSpec) -> bool:
    """Return whether the limit of `longest_of` is the lifetime, and not the timeout."""
    return group.lifetime_seconds is not None and (
        group.timeout_seconds is None or group.lifetime_seconds < group.timeout_seconds
    )


_ENDS = frozenset(
    {
        Event.EXITED_ZERO,
        Event.USER_FAILED,
        Event.SYSTEM_FAILED,
        Event.VANISHED,
        Event.HEALTH_FAILED,
    }
)


def meaning_of(end: AttemptEnd, hook: Hook, state: TaskState) -> Event:
    """Return the hook's event for an end in `state`, or the reported one if it is illegal."""
    event = hook.on_end(end)
    return event if event in _ENDS and is_legal(state, event) else end.event
