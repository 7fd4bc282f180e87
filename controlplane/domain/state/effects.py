"""What decisions come to: plain, frozen instructions, which only `commands.state.apply` applies.

Each names the state it expects to find; where the database has moved on, the effect is stale, is
counted, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import CellState, Quarantine, Reason, ReleaseKind, RetryBudget
from controlplane.domain.state.transitions import Counters


@dataclass(frozen=True, slots=True)
class Step:
    """One row of history: a task and its attempt moved, because of `reason`."""

    task_from: TaskState
    task_to: TaskState
    attempt_state: TaskState | None
    reason: Reason
    at: datetime
    message: str = ""


@dataclass(frozen=True, slots=True)
class ChangeAttempt:
    """New facts of an attempt; None leaves a column as it is."""

    uid: UUID
    state_from: TaskState
    state_to: TaskState
    charged: RetryBudget | None = None
    charge: int = 0
    report_seq: int | None = None
    phase: str | None = None
    phase_number: int | None = None
    progress: int | None = None
    container_id: str | None = None
    exit_code: int | None = None
    failure_kind: str | None = None
    reason: str | None = None
    message: str | None = None
    result: str | None = None
    result_truncated: bool = False
    usage: Mapping[str, Any] | None = None
    details: Mapping[str, Any] | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    releasable_at: datetime | None = None
    release: ReleaseKind | None = None
    stop_reason: Reason | None = None
    stop_force: bool = False


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """A task and its attempt move together; if `task_from == task_to`, only the attempt."""

    job_id: int
    group_id: int
    task_id: int
    task_from: TaskState
    task_to: TaskState
    counters: Counters
    at: datetime
    steps: tuple[Step, ...] = ()
    attempt: ChangeAttempt | None = None
    attempt_open: bool = False
    not_before: datetime | None = None
    avoid_cell_ids: tuple[int, ...] = ()
    prefer_cell_id: int | None = None
    nominated_cell_id: int | None = None
    nominated_until: datetime | None = None
    started_at: datetime | None = None
    failure_reason: str = ""
    by_dependency: bool = False


@dataclass(frozen=True, slots=True)
class PlaceTasks:
    """`counts[i]` waiting tasks of group `group_ids[i]` go to cell `cell_ids[i]`."""

    group_ids: Sequence[int] = ()
    cell_ids: Sequence[int] = ()
    counts: Sequence[int] = ()
    avoid_cell_ids: Sequence[tuple[int, ...] | None] = ()
    nominated_cell_ids: Sequence[int | None] = ()
    prefer_cell_ids: Sequence[int | None] = ()


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job must end as `state`: nothing of it is placed any more, its open tasks are ended."""

    job_id: int
    state: TaskState
    reason: Reason
    message: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class ExplainShape:
    """Why the tasks of a shape wait; None: none does."""

    shape_id: int
    reason: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ExplainGroup:
    """Why the tasks of a group wait, as part of a gang."""

    group_id: int
    reason: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RejectGroup:
    """The waiting tasks of a group can never be placed: they end UNSCHEDULABLE."""

    group_id: int
    reason: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NominateTasks:
    """Keep room for `count` waiting tasks of a group on a cell, until `until`."""

    group_id: int
    cell_id: int
    count: int
    until: datetime


@dataclass(frozen=True, slots=True)
class ChangeCell:
    """A cell moves from one of `states` to `state`.

    `ordered`: what an operator wants it to be from now on, with the deadline of a drain. `cause`
    and `until`: of a quarantine; `cause_before`: of the one that it has to be in, if it matters.
    `trusted_at`: what failed there before is of the past.
    """

    cell_id: int
    states: frozenset[CellState]
    state: CellState
    reason: str
    ordered: CellState | None = None
    drain_deadline_at: datetime | None = None
    cause: Quarantine | None = None
    until: datetime | None = None
    trusted_at: datetime | None = None
    cause_before: Quarantine | None = None


@dataclass(frozen=True, slots=True)
class RaiseAlert:
    """An operator should look; raised once while it is open."""

    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Effects:
    """All that one decision comes to."""

    changes: Sequence[ChangeTask] = ()
    endings: Sequence[EndJob] = ()
    explanations: Sequence[ExplainGroup] = ()
    cells: Sequence[ChangeCell] = ()
    alerts: Sequence[RaiseAlert] = field(default_factory=tuple)
