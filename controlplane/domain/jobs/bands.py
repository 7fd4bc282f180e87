"""The highest band of the jobs of a user, project or domain; pure.

It is checked on submission and retry only, so a later change does not affect existing jobs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.domain.scopes import Scope, ScopeKind, ScopeLimits
from controlplane.domain.state.states import Band


@dataclass(frozen=True, slots=True)
class LimitedScope:
    """A scope with the limits that apply to it, of its own quota or of the default quota.

    `stored_bytes`: of a project; None: no limit.
    """

    scope: Scope
    name: str
    limits: ScopeLimits
    highest_band: Band
    is_default: bool = False
    stored_bytes: int | None = None


def default_band(kind: ScopeKind) -> Band:
    """Return the highest band of a scope's jobs if no quota sets another.

    Production evicts the work of all others, so an operator must grant it.
    """
    return Band.PRODUCTION if kind is ScopeKind.DOMAIN else Band.INTERACTIVE


def refuse_band(name: str, limits: Iterable[LimitedScope]) -> str:
    """Return why the scopes with these limits may not use the band `name`; empty if they may."""
    band = Band[name.upper()]
    exceeded = [item for item in limits if band < item.highest_band]
    if not exceeded:
        return ""
    found = " and ".join(
        f"{item.highest_band.name.lower()} is the highest band of {item.scope.kind} {item.name}"
        for item in exceeded
    )
    commands = ", ".join(
        f"cellrun quota {item.scope.kind} {item.name} --set highest_band={name}"
        for item in exceeded
    )
    return f"{name} is too high: {found}; an operator can raise it ({commands})"
