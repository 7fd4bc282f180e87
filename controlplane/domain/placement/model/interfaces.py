"""Interfaces of placement plugins: three small protocols, all pure.

A plugin is created without arguments, keeps no state between calls, and receives data only: neither
a clock nor a database. docs/plugins.md explains how to write one. Source: Backend.AI (Sokovan),
which has the same kinds; a fourth, the hook, is in `domain.hooks`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from controlplane.contract.records import record
from controlplane.domain.placement.model.snapshot import ShapeFacts
from controlplane.domain.scopes import ScopeKind, ScopeLimits

Vector = NDArray[np.int64]
Matrix = NDArray[np.int64]


# ------------------------------------------------------------------------------- validators


@dataclass(frozen=True, slots=True)
class QuotaState:
    """A quota with its usage at this point of the pass. `title`: "user alice".

    `leaving_jobs`: the `running_jobs` with terminating attempts only. `waiting`: tasks of the scope
    that were admitted to this pass and could not be placed. `is_default`: the limits are those of
    the default quota.
    """

    kind: ScopeKind
    title: str
    limits: ScopeLimits
    resources: Mapping[str, int]
    running_tasks: int
    running_jobs: int
    leaving_jobs: int = 0
    waiting: int = 0
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request to place `tasks` tasks of one shape now; all or none if `is_whole`.

    `resources`: of each task. `new_jobs`: number of their jobs without running tasks.
    `startable_at` None: a dependency is open. `quotas`: of all their scopes.
    """

    shape: ShapeFacts
    tasks: int
    resources: Mapping[str, int]
    quotas: Sequence[QuotaState]
    now: datetime
    startable_at: datetime | None
    new_jobs: int = 1
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ValidationFailure:
    """One violation by a request. `is_final`: waiting cannot resolve it.

    `code` and `figures` are for programs, `text` for users.
    """

    code: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    is_final: bool = False


@record
class ValidationResult:
    """The number of tasks that are admitted now, and the violations of the others.

    ADMIT: all tasks; DEFER: fewer; REJECT: a violation that `is_final`, with which the tasks end
    UNSCHEDULABLE.
    """

    admitted: int
    violations: tuple[ValidationFailure, ...] = ()


class Validator(Protocol):
    """Decides whether tasks may be placed, independent of capacity."""

    def check(self, request: Request) -> ValidationResult:
        """Return how many of `request.tasks` may be placed, with all violations."""


# ------------------------------------------------------------------------------- sequencers


class Queue(Protocol):
    """The waiting rows of one band, as columns, ordered by rank, job and group.

    `rank`: the place of the job in its band, the lowest first; 0 unless it was moved. `owner`,
    `project`, `shape`: ids, by row. `left`: remaining tasks, updated during the pass.
    """

    job: Vector
    rank: Vector
    owner: Vector
    project: Vector
    shape: Vector
    is_child: NDArray[np.bool_]
    left: Vector

    def share_of(self, owner: int) -> float:
        """Return the owner's current dominant share of the pool, from 0 to 1."""

    def share_of_project(self, project: int) -> float:
        """Return the project's current dominant share of the pool, from 0 to 1."""

    def share_of_task(self, row: int) -> float:
        """Return the maximum by which one task of the row changes its owner's dominant share."""

    def weight_of(self, owner: int) -> float:
        """Return the owner's weight, by default 1."""

    def weight_of_project(self, project: int) -> float:
        """Return the project's weight, by default 1."""

    def sure_room(self, rows: Vector) -> "GuaranteedCapacity | None":
        """Return the room for tasks of these rows; None: other limits than cells apply, too."""


@dataclass(frozen=True, slots=True)
class GuaranteedCapacity:
    """Room for tasks of some rows, independent of the order of placement.

    `counts` tasks of the rows fit if their sum is at most `total`, and for each row with a count
    the sum of `weights[row] * counts` is at most `room[row]`.
    """

    weights: Matrix
    room: Vector
    total: int


@record
class Turn:
    """A turn of `rows`, in this order, for at most `tasks` tasks in all.

    Rows of one turn have one shape.
    """

    rows: Vector
    tasks: int


class Sequencer(Protocol):
    """Decides the order of rows. `uses_shares`: it reads the shares of owners or projects."""

    uses_shares: bool

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Yield turns until no row has remaining tasks.

        After each turn, `queue.left` has the remaining tasks: placed tasks are subtracted, and rows
        that cannot be placed in this pass have none.
        """


# ------------------------------------------------------------------------------- selectors


@record
class CellOffer:
    """The cells that tasks of one shape may go to, in order of name.

    `capacity`, `used`: resources x cells; `request`: of each task, by resource. `room`: number of
    tasks that each cell can take, 0 for unusable cells. `sizes`: rank of each cell's total capacity
    in the pool, 0 for the smallest, equal for equal cells (`shares.capacity_ranks`). `start`: index
    of the cell after the one that got the last task (round-robin).
    """

    capacity: Matrix
    used: Matrix
    request: Vector
    room: Vector
    sizes: Vector
    start: int = 0


class Selector(Protocol):
    """Decides which cells take tasks. `keeps_place`: it uses `CellOffer.start`."""

    keeps_place: bool

    def select(self, offer: CellOffer, count: int) -> Vector:
        """Return how many of `count` tasks each cell takes, up to `offer.room`, with sum `count`.

        `count` is at most the sum of `offer.room`. Ties are broken by name (order), so that a plan
        is reproducible.
        """
