"""What decisions are made from: frozen rows, read in one go, complete for the decision at hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import CellState, Exclusive, MassLoss
from controlplane.domain.state.transitions import Counters, RetryLimits

Resources = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """The present attempt of a task. Unreleased, or the last one."""

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


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A task with its budgets and its present attempt. `avoid_cell_ids`: the latest last."""

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


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """What is known of a cell's lease. `silent_ticks`: ticks that found the cell silent since.

    `has_left`: it said that it leaves for good, and nothing of it is left to be confirmed;
    `is_replaced`: another incarnation of the cell asked for its place since it was last heard.
    """

    cell_id: int
    name: str
    state: CellState
    incarnation: str
    last_heard_at: datetime
    expires_at: datetime
    silent_ticks: int
    pool_id: int = 0
    has_left: bool = False
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class PoolSilence:
    """How many cells of a pool are silent, and what was decided about that.

    `cells`: those that count: not LOST, DRAINING, gone in order, given up by an operator, or silent
    and replaced; `silent`: so many of them are, the first of them since `silent_since`. `held_at`:
    since when their loss is held back; `confirmed_at`: who was last heard before then may be lost.
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
    """A group as its dependants see it.

    `ran`: its tasks that were RUNNING at some time, or succeeded; counted only while another group
    waits for it to start. `is_rest`: some of its tasks succeeded in the job that this one retries.
    """

    group_id: int
    name: str
    counts: Mapping[TaskState, int]
    min_available: int
    depends_on: tuple[tuple[str, str], ...] = ()
    startable_at: datetime | None = None
    ran: int = 0
    is_rest: bool = False
