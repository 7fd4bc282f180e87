"""What a rule of convergence is, and what it is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from controlplane.commands.convergence.orphan_files import StoreWalk
from controlplane.commands.state.tick_alerts import TickAlerts
from controlplane.domain.convergence.policy import Policy

# Jobs looked at by one rule in one tick.
JOBS_PER_TICK = 500


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts that save a process repeated work: its task owns them, rules get them with each look.

    A new process begins without; everything that must outlive it is in the database.
    """

    alerts: TickAlerts = field(default_factory=TickAlerts)
    store_walk: StoreWalk = field(default_factory=StoreWalk)


@dataclass(frozen=True, slots=True)
class RuleContext:
    """One look of convergence. `due`: the sources that have work, as `queries.convergence.due`
    names them; `covered_at`: since when placement has looked at all that waits; `memory`: of the
    process.
    """

    now: datetime
    policy: Policy
    due: frozenset[str]
    covered_at: datetime | None = None
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True)
class ConvergenceRule:
    """One rule: `run` is called if a source of `due` has work, and says how much it did of what.

    `always`: also if none has.

    `number`: its place in the specification, which several may share. `waits`: not while we listen
    after a gap of our own, so that what cells have to say comes first. `on_wake`: also between two
    ticks of the clock, when something ended that others go by. `is_repair`: if it had to do
    something, an operator should know.
    """

    number: int
    name: str
    due: tuple[str, ...]
    run: Callable[[RuleContext], Mapping[str, int]]
    waits: bool = False
    on_wake: bool = False
    is_repair: bool = False
    always: bool = False
