"""How a pool places: its plugins by name, and its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# The built-in validators, in the order in which their findings are told.
DEFAULT_VALIDATORS = (
    "dependencies",
    "start_time",
    "pending_limit",
    "user_quota",
    "project_quota",
    "domain_quota",
    "concurrency",
)


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The policy of one pool, as its row says. `cursor`: the cell that round-robin used last.

    `max_building_per_cell`: of cells that run containers; None: any number. `starvation_seconds`:
    None: nobody reserves a place. `tokens`: by name, how many may be held at once.
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
