"""Facts: rows that are the input of decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from controlplane.contract.records import record
from controlplane.contract.states import TaskState
from controlplane.domain.state.growth import GrowthRoom
from controlplane.domain.state.retry_rules import RetryRule
from controlplane.domain.state.states import CellState, Exclusive, MassLoss
from controlplane.domain.state.transitions import Counters, RetryLimits

Resources = Mapping[str, int]


@record
class AttemptFacts:
    """The current attempt of a task: the unreleased one, or else the last one."""

    uid: UUID
    cell_id: int
    incarnation: str
    state: TaskState
    phase: str
    report_seq: int
    created_at: datetime
    start_before: datetime
    started_at: datetime | None
    released_at: datetime | None
    releasable_at: datetime | None = None
    is_stop_forced: bool = False
    phase_number: int = 0


@record
class TaskFacts:
    """A task with its budgets and its current attempt. `avoid_cell_ids`: the latest cell last.

    `resources`: its request, known only if the group has retry rules. `room`: what its pool can
    ever run, known only for the end of an attempt after which a rule may increase the request.
    """

    task_id: int
    group_id: int
    job_id: int
    state: TaskState
    counters: Counters
    limits: RetryLimits
    attempt: AttemptFacts | None = None
    at_most_once: bool = False
    exclusive: Exclusive = Exclusive.NO
    timeout_is_lifetime: bool = False
    avoid_cell_ids: tuple[int, ...] = ()
    retry_rules: tuple[RetryRule, ...] = ()
    resources: Resources | None = None
    room: GrowthRoom | None = None


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A cell's lease. `silent_ticks`: number of ticks since its last message.

    `has_left`: the cell announced its final exit and has no unreleased attempt. `is_replaced`:
    another incarnation of the cell has tried to register since the last message.
    """

    cell_id: int
    name: str
    state: CellState
    incarnation: str
    last_message_at: datetime
    expires_at: datetime
    silent_ticks: int
    pool_id: int = 0
    has_left: bool = False
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class PoolSilence:
    """The number of silent cells of a pool, and the state of suppressed losses.

    `cells`: all except cells that are LOST or DRAINING, have left, are silent and replaced, or are
    silent since an operator confirmed their loss. `silent`: the silent ones of these, the first
    since `silent_since`. `held_at`: start of the suppression. `confirmed_at`: time of an operator's
    confirmation, which applies to cells without a message since then.
    """

    pool_id: int
    name: str
    mass_loss: MassLoss
    held_at: datetime | None
    confirmed_at: datetime | None
    cells: int
    silent: int
    silent_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group, with the facts for its dependants.

    `ran`: number of tasks that were RUNNING at some time or succeeded, counted only while another
    group waits for its start. `is_rest`: other tasks succeeded in the job that this one retries.
    """

    group_id: int
    name: str
    counts: Mapping[TaskState, int]
    min_available: int
    depends_on: tuple[tuple[str, str], ...] = ()
    startable_at: datetime | None = None
    ran: int = 0
    is_rest: bool = False
