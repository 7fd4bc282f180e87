"""Placement policy of a pool: its plugins by name, and its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controlplane.domain.scopes import ScopeKind, ScopeLimits

# The built-in validators, in the order of their findings.
DEFAULT_VALIDATORS = (
    "dependencies",
    "start_time",
    "pending_limit",
    "user_quota",
    "project_quota",
    "domain_quota",
    "concurrency",
)
_RESOURCE_VALIDATORS = {
    ScopeKind.USER: "user_quota",
    ScopeKind.PROJECT: "project_quota",
    ScopeKind.DOMAIN: "domain_quota",
}
_COUNT_VALIDATOR = "concurrency"


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The policy of one pool. `cursor`: the cell that round-robin used last.

    `max_building_per_cell`: of cells that run containers; None: any number. `starvation_seconds`
    None: no capacity is reserved. `tokens`: maximum that may be held at once, by name.
    """

    sequencer: str = "fifo"
    selector: str = "dispersed"
    validators: tuple[str, ...] = DEFAULT_VALIDATORS
    strict_fifo: bool = False
    preemption: bool = True
    max_building_per_cell: int | None = 8
    starvation_seconds: float | None = 300.0
    tokens: Mapping[str, int] = field(default_factory=dict)
    cursor: str = ""

    def is_starving(self, since: datetime | None, now: datetime) -> bool:
        """Return whether capacity is reserved for a task that waits since then."""
        patience = self.starvation_seconds
        if patience is None or since is None:
            return False
        return since <= now - timedelta(seconds=patience)

    def binding(self, kind: ScopeKind, limits: ScopeLimits) -> ScopeLimits:
        """Return the limits of a scope that the pool's validators enforce.

        Tasks of a pool without these validators count against quotas, but are not limited by them.
        """
        is_counted = _COUNT_VALIDATOR in self.validators
        return ScopeLimits(
            resources=limits.resources if _RESOURCE_VALIDATORS[kind] in self.validators else {},
            running_tasks=limits.running_tasks if is_counted else None,
            running_jobs=limits.running_jobs if is_counted else None,
        )

    @property
    def is_bound_by_quotas(self) -> bool:
        """Return whether the pool enforces any quota."""
        return not {_COUNT_VALIDATOR, *_RESOURCE_VALIDATORS.values()}.isdisjoint(self.validators)
