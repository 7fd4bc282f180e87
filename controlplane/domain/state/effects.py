"""Effects: the changes that a decision requests, which only `commands.state.apply` applies.

An effect on a row contains the state that it expects. If the row has another state, the effect is
stale: it is counted and changes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from controlplane.contract.records import record
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import CellState, Quarantine, Reason, ReleaseKind, RetryBudget
from controlplane.domain.state.transitions import Counters


@record
class Step:
    """One row of history: a change of a task and its attempt."""

    task_from: TaskState
    task_to: TaskState
    attempt_state: TaskState | None
    reason: Reason
    at: datetime
    message: str = ""


@record
class ChangeAttempt:
    """New values of an attempt's columns; None leaves a column unchanged.

    `retry_rule`: number of the retry rule that decided on its end.
    """

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
    retry_rule: int | None = None


@record
class ChangeTask:
    """Change a task and its attempt; if `task_from == task_to`, only the attempt.

    `resources`: the new request of its next attempts; None: as before.
    """

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
    resources: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class PlaceTasks:
    """Place `counts[i]` waiting tasks of group `group_ids[i]` on cell `cell_ids[i]`.

    `job_ids`: of the groups. `shape_ids`: of the tasks; a group has several if retry rules
    increased requests.
    """

    job_ids: Sequence[int] = ()
    group_ids: Sequence[int] = ()
    shape_ids: Sequence[int] = ()
    cell_ids: Sequence[int] = ()
    counts: Sequence[int] = ()
    avoid_cell_ids: Sequence[tuple[int, ...] | None] = ()
    nominated_cell_ids: Sequence[int | None] = ()
    prefer_cell_ids: Sequence[int | None] = ()


@record
class Placement:
    """Create an attempt of one waiting task on a cell.

    `concurrency_id`: of the concurrency key that it holds. `resources`: the request of the task, if
    a retry rule increased it.
    """

    uid: UUID
    task_id: int
    group_id: int
    job_id: int
    cell_id: int
    incarnation: str
    number: int
    index: int
    concurrency_id: int | None = None
    resources: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class EndJob:
    """End the job as `state`: place no more of its tasks, and end the open ones."""

    job_id: int
    state: TaskState
    reason: Reason
    message: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class ExplainShape:
    """Record the reason why the tasks of a shape wait; None clears it."""

    shape_id: int
    reason: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ExplainGroup:
    """Record the reason why the tasks of a group of a gang wait."""

    group_id: int
    reason: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RejectGroup:
    """End the waiting tasks of a group as UNSCHEDULABLE, because they can never be placed."""

    group_id: int
    reason: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NominateTasks:
    """Reserve capacity for `count` waiting tasks of a group with one shape on a cell."""

    group_id: int
    shape_id: int
    cell_id: int
    count: int
    until: datetime


@dataclass(frozen=True, slots=True)
class ForceStops:
    """Force the stops in progress of a job, or of one of its tasks."""

    job_id: int
    task_id: int | None = None


@dataclass(frozen=True, slots=True)
class RaiseAlert:
    """Raise an alert for operators, or renew the open one."""

    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class ClearAlert:
    """Clear the alert of this kind about this subject, if it is open."""

    kind: str
    subject: str


@dataclass(frozen=True, slots=True)
class ChangeCell:
    """Move a cell from one of `states` to `state`.

    `ordered`: the state that an operator ordered, with the deadline of a drain. `order_reason`: of
    an order that leaves the reason of the state as it is. `actor`: the user who acts; empty: a cell
    or convergence. `cause`, `until`: of the new quarantine. `cause_before`: the expected cause of
    the current quarantine; None: any. `trusted_at`: failures before this time no longer count.
    `revoked_at`: since when its key is revoked; its exclusive attempts then wait for the end of its
    lease. `alert` is raised and `cleared` are cleared only if the cell moves.
    """

    cell_id: int
    states: frozenset[CellState]
    state: CellState
    reason: str
    ordered: CellState | None = None
    order_reason: str = ""
    actor: str = ""
    drain_deadline_at: datetime | None = None
    cause: Quarantine | None = None
    until: datetime | None = None
    trusted_at: datetime | None = None
    revoked_at: datetime | None = None
    cause_before: Quarantine | None = None
    alert: RaiseAlert | None = None
    cleared: tuple[ClearAlert, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangePool:
    """Suppress losses of cells in a pool since `held_at`; None ends the suppression.

    `lease_until`: time to which the leases of its silent cells are extended.
    """

    pool_id: int
    held_at: datetime | None
    lease_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """All effects of one decision.

    `unblocked`: jobs that no longer wait for other jobs. `derived`: jobs whose state is derived
    from their tasks even without changes. `frees`: wake placement, as if capacity became free.
    """

    changes: Sequence[ChangeTask] = ()
    endings: Sequence[EndJob] = ()
    unblocked: Collection[int] = ()
    derived: Collection[int] = ()
    stops: Sequence[ForceStops] = ()
    nominations: Sequence[NominateTasks] = ()
    pools: Sequence[ChangePool] = ()
    cells: Sequence[ChangeCell] = ()
    alerts: Sequence[RaiseAlert] = ()
    cleared: Sequence[ClearAlert] = ()
    frees: bool = False
