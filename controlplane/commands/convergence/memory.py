"""What a process of convergence keeps between its ticks."""

from dataclasses import dataclass, field

from controlplane.commands.convergence.orphan_files import StoreWalk
from controlplane.commands.state.tick_alerts import TickAlerts


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts that save a process repeated work: its task owns them, rules get them with each look.

    A new process begins without; everything that must outlive it is in the database.
    """

    alerts: TickAlerts = field(default_factory=TickAlerts)
    store_walk: StoreWalk = field(default_factory=StoreWalk)
