"""What a rule of convergence is, and what it is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from controlplane.commands.convergence.orphan_files import StoreWalk
from controlplane.commands.state.tick_alerts import TickAlerts
from controlplane.domain.convergence.policy import Policy

# Jobs handled by one rule in one tick.
JOBS_PER_TICK = 500


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts that save a process repeated work: its Celery task owns them and passes them to the
    rules.

    A new process begins without; everything that must outlive it is in the database.
    """

    alerts: TickAlerts = field(default_factory=TickAlerts)
    store_walk: StoreWalk = field(default_factory=StoreWalk)


@dataclass(frozen=True, slots=True)
class RuleContext:
    """One run of convergence. `due`: the sources that have work, as `queries.convergence.due` names
    them; `covered_at`: since when placement has considered all pending tasks; `memory`: of the
    process.
    """

    now: datetime
    policy: Policy
    due: frozenset[str]
    covered_at: datetime | None = None
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True)
class ConvergenceRule:
    """One rule: `run` is called if a source of `due` has work, and returns counts by name.

    `always`: also if none has.

    `number`: its place in the specification, which several may share. `waits`: not during the grace
    after a gap of the control plane, so that messages of cells come first. `on_wake`: also between
    two ticks of the clock, when something ended that others depend on. `is_repair`: its work raises
    an alert.
    """

    number: int
    name: str
    due: tuple[str, ...]
    run: Callable[[RuleContext], Mapping[str, int]]
    waits: bool = False
    on_wake: bool = False
    is_repair: bool = False
    always: bool = False
