"""The snapshot of one pool that a pass reads: plain data, so that it can be replayed.

The pass has two steps, so that unplaceable tasks cost little: first the few waiting *shapes* are
compared with the cells; then the *rows* (groups of waiting tasks) are read for placeable shapes
only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controlplane.domain.constraints import Constraint, Tags
from controlplane.domain.placement.model.concurrency import ConcurrencyRule, KeyUsage
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.scopes import Quota, Scope, scopes_of
from controlplane.domain.state.gangs import GangGroupFacts
from controlplane.domain.state.states import Band, CellState

NO_TAGS = Tags()

Resources = Mapping[str, int]
"""Amounts by name: cpu_millis, memory_mib, disk_mib, gpu, named ones and tokens."""


@dataclass(frozen=True, slots=True)
class CellFacts:
    """A cell: its capacity, and the part that unreleased attempts hold.

    `start_slots`: number of further containers that it may begin to prepare; None: any number.
    """

    cell_id: int
    name: str
    state: CellState
    incarnation: str
    capacity: Resources
    used: Resources
    task_types: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: Tags = NO_TAGS
    start_slots: int | None = None


@dataclass(frozen=True, slots=True)
class ShapeFacts:
    """One shape and the number of its waiting tasks.

    `reason`: the one of the last pass. `concurrency`: the rule of its concurrency key, if any.
    """

    shape_id: int
    band: Band
    owner_id: int
    project_id: int
    domain_id: int
    count: int
    resources: Resources
    task_type: str
    constraints: tuple[Constraint, ...] = ()
    placement_tags: tuple[str, ...] = ()
    coscheduled: bool = False
    allow_unsatisfiable: bool = False
    reason: Mapping[str, object] | None = None
    concurrency: ConcurrencyRule | None = None

    def scopes(self) -> tuple[Scope, ...]:
        """Return the scopes with the quotas that its tasks count against."""
        return scopes_of(self.owner_id, self.project_id, self.domain_id)


@dataclass(frozen=True, slots=True)
class PendingRows:
    """Rows of waiting tasks, as columns of equal length, in order of band, rank, job and group.

    A row holds the tasks of one group that avoid the same cells (in the same order, the latest
    last; None: none), or prefer the same one, and are nominated to the same one.
    `ranks`: the place of its job in the band, the lowest first; 0 unless it was moved.
    `is_first`: it completes a gang that has begun. `is_child`: its job has a parent. `since`: since
    when it could be placed. `timeout_seconds`: of its attempts; None: none. `reasons`: of the group
    in the last pass (only of gangs).
    """

    shape_ids: Sequence[int] = ()
    group_ids: Sequence[int] = ()
    job_ids: Sequence[int] = ()
    counts: Sequence[int] = ()
    is_first: Sequence[bool] = ()
    is_child: Sequence[bool] = ()
    since: Sequence[datetime | None] = ()
    timeout_seconds: Sequence[float | None] = ()
    avoid_cell_ids: Sequence[tuple[int, ...] | None] = ()
    nominated_cell_ids: Sequence[int | None] = ()
    prefer_cell_ids: Sequence[int | None] = ()
    reasons: Sequence[Mapping[str, object] | None] = ()
    ranks: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.group_ids)


@dataclass(frozen=True, slots=True)
class GangFacts:
    """A coscheduled job with all its groups, waiting or not. `group_ids`: in the same order.

    `group_by`: the label with one value for all its cells. `cell_ids`: cells of active members.
    """

    group_ids: tuple[int, ...]
    groups: tuple[GangGroupFacts, ...]
    min_available: int
    group_by: str = ""
    cell_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Nomination:
    """Capacity of a cell reserved for tasks of a row, until it is used, at most `until`.

    `begins_at`: latest end of the attempts there; None: unknown.
    """

    cell_id: int
    group_id: int
    count: int
    until: datetime
    begins_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class QuotaReservation:
    """Quota reserved for `count` nominated tasks of a job in another pool, `resources` each."""

    job_id: int
    band: Band
    owner_id: int
    project_id: int
    domain_id: int
    count: int
    resources: Resources

    def scopes(self) -> tuple[Scope, ...]:
        """Return the scopes with the quotas that the tasks will count against."""
        return scopes_of(self.owner_id, self.project_id, self.domain_id)


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One pool: its READY cells by name, the waiting shapes, and the usage of quotas.

    `owner_usage`, `project_usage`: amounts held in this pool, by owner and project; read only for
    sequencers that use shares.
    `tokens_used`: by name. `reserved_elsewhere`: quota for nominated tasks of other pools.
    `key_usage`: of the concurrency keys of the waiting shapes, all pools together.
    """

    pool_id: int
    name: str
    now: datetime
    policy: PoolPolicy
    cells: tuple[CellFacts, ...]
    shapes: tuple[ShapeFacts, ...]
    unready_cells: Mapping[CellState, int] = field(default_factory=dict)
    quotas: tuple[Quota, ...] = ()
    tokens_used: Mapping[str, int] = field(default_factory=dict)
    owner_usage: Mapping[int, Resources] = field(default_factory=dict)
    project_usage: Mapping[int, Resources] = field(default_factory=dict)
    nominations: tuple[Nomination, ...] = ()
    reserved_elsewhere: tuple[QuotaReservation, ...] = ()
    key_usage: tuple[KeyUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class PassFacts:
    """Input of the second step: the rows of the shapes that may be placed, and their gangs.

    `partial`: shapes of which not all rows were read. Not `is_whole`: not all rows of the other
    shapes were read either, so nothing is known about the rest.
    """

    waiting: PendingRows = PendingRows()
    gangs: Mapping[int, GangFacts] = field(default_factory=dict)
    is_whole: bool = True
    partial: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class EvictableAttempt:
    """An attempt that may be evicted. `gang`: its job, if it is evicted only with all members.

    `is_free`: eviction is not charged (it has not begun to build). `ends_by`: latest end by
    timeout; None: unknown.
    """

    task_id: int
    job_id: int
    group_id: int
    cell_id: int
    band: Band
    resources: Resources
    owner_id: int
    project_id: int
    domain_id: int
    began_at: datetime
    stop_seconds: float
    gang: int | None = None
    is_evictable: bool = True
    is_free: bool = False
    ends_by: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReleasingCapacity:
    """Capacity of a cell held by ended attempts, which will be released."""

    cell_id: int
    resources: Resources
