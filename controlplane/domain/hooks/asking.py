"""Asking a hook: what it makes of a group, or of an end, whatever its author did; pure."""

from typing import Any

from controlplane.contract.health import HealthCheck
from controlplane.contract.states import TaskState
from controlplane.domain.hooks.interface import End, Hook, Refusal, Terms
from controlplane.domain.transitions import Event, is_legal
from controlplane.spec import Fault, JobSpec, TaskGroupSpec
from controlplane.spec.services import HealthCheck as HealthCheckSpec


def terms_of(group: TaskGroupSpec) -> Terms:
    """The terms of a group as it was submitted."""
    return Terms(
        timeout_seconds=group.timeout_seconds,
        idle_timeout_seconds=group.idle_timeout_seconds,
        lifetime_seconds=group.lifetime_seconds,
        has_health_check=group.health_check is not None,
        ports=tuple(group.ports),
    )


def find_kind_faults(spec: JobSpec, hook: Hook, *, is_short: bool) -> list[Fault]:
    """What the hook of the job's kind refuses, each with its field."""
    faults = []
    for position, group in enumerate(spec.groups):
        prefix = "" if is_short else f"groups[{position}]."
        try:
            told_of(group, hook.prepare(terms_of(group)))
        except Refusal as refusal:
            faults.append(Fault(f"{prefix}{refusal.field}", str(refusal)))
        except ValueError as error:
            faults.append(Fault("kind", f"{spec.kind} does not take group {group.name}: {error}"))
        except Exception as error:  # a hook of another package
            text = f"the hook {spec.kind} failed at group {group.name}: {error!r}"
            faults.append(Fault("kind", text))
    return faults


def told_of(group: TaskGroupSpec, terms: Terms) -> dict[str, Any]:
    """What of the terms a cell is told, as it is kept with the group; what is not so is left out.

    Raises ValueError if the hook wants a health check that was not submitted.
    """
    told: dict[str, Any] = {
        name: getattr(terms, name)
        for name in ("timeout_seconds", "idle_timeout_seconds", "lifetime_seconds")
        if getattr(terms, name) is not None
    }
    if terms.ports:
        told["ports"] = list(terms.ports)
    if terms.has_health_check:
        if group.health_check is None:
            raise Refusal("health_check", "is required for this kind")
        told["health_check"] = _health_check_of(group.health_check).body()
    return told


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


def longest_of(terms: Terms) -> float | None:
    """How long an attempt may be RUNNING at most; None: for ever."""
    limits = (terms.timeout_seconds, terms.lifetime_seconds)
    return min((limit for limit in limits if limit is not None), default=None)


_ENDS = frozenset(
    {
        Event.EXITED_ZERO,
        Event.USER_FAILED,
        Event.SYSTEM_FAILED,
        Event.VANISHED,
        Event.HEALTH_FAILED,
    }
)


def meaning_of(end: End, hook: Hook, state: TaskState) -> Event:
    """What the hook makes of an end of a task in `state`; what was told, if that cannot be."""
    event = hook.on_end(end)
    return event if event in _ENDS and is_legal(state, event) else end.event
