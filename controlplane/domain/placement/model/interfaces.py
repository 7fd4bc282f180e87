"""Interfaces of placement plugins: three small protocols, all pure.

A plugin is created without arguments, keeps no state between calls, and receives data only: neither
a clock nor a database. docs/plugins.md shows how to write one. Source: Backend.AI (Sokovan), which
has the same kinds; a fourth, the hook, is in `domain.hooks`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.model.snapshot import ShapeFacts
from controlplane.domain.scopes import ScopeKind, ScopeLimits

Vector = NDArray[np.int64]
Matrix = NDArray[np.int64]


# ------------------------------------------------------------------------------- validators


@dataclass(frozen=True, slots=True)
class QuotaState:
    """A quota with its usage at this point of the pass. `title`: "user alice".

    `leaving_jobs`: those of the `running_jobs` whose attempts are all terminating. `waiting`: tasks
    of the scope that were admitted to this pass and could not be placed.
    """

    kind: ScopeKind
    title: str
    limits: ScopeLimits
    resources: Mapping[str, int]
    running_tasks: int
    running_jobs: int
    leaving_jobs: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """`tasks` tasks of one shape that want to be placed now. All of them, if `is_whole`.

    `resources`: of each. `new_jobs`: how many of their jobs begin with them: nothing of these runs.
    `startable_at`: None: something that they depend on is open. `quotas`: of all their scopes.
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

    `code` and `figures` are data for programs, `text` is for people.
    """

    code: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """How many of the tasks are admitted now, and what stands against the rest.

    ADMIT is all of them, DEFER fewer; REJECT is a violation that `is_final`: the tasks end
    UNSCHEDULABLE.
    """

    admitted: int
    violations: tuple[ValidationFailure, ...] = ()


class Validator(Protocol):
    """Decides whether tasks may be placed, independent of capacity."""

    def check(self, request: Request) -> ValidationResult:
        """Return how many of `request.tasks` may be placed; all violations are told."""


# ------------------------------------------------------------------------------- sequencers


class Queue(Protocol):
    """The rows of one band that wait, as columns; `left` changes as the pass goes on.

    Rows are in order of job and group. `owner`, `shape`: ids, by row.
    """

    job: Vector
    owner: Vector
    shape: Vector
    is_child: NDArray[np.bool_]
    left: Vector

    def share_of(self, owner: int) -> float:
        """Return the owner's dominant share of the pool just now: 0.25 is a quarter of some
        resource.
        """

    def share_of_task(self, row: int) -> float:
        """Return by how much one task of the row changes its owner's dominant share, at most."""

    def weight_of(self, owner: int) -> float:
        """Return the owner's weight, 1 unless a quota says otherwise."""

    def sure_room(self, rows: Vector) -> "GuaranteedCapacity | None":
        """Room for tasks of these rows; None: it is not cells alone that limit them."""


@dataclass(frozen=True, slots=True)
class GuaranteedCapacity:
    """Room for tasks of some rows, in whatever order they are placed.

    `counts` tasks of the rows are sure to find it if `total` of them at most, and if of each row
    with a count the sum of `weights[row] * counts` is at most `room[row]`.
    """

    weights: Matrix
    room: Vector
    total: int


@dataclass(frozen=True, slots=True)
class Turn:
    """It is the turn of `rows`, in this order, for at most `tasks` tasks of all of them.

    Rows of one turn have one shape.
    """

    rows: Vector
    tasks: int


class Sequencer(Protocol):
    """Decides the order of rows. `uses_shares`: it reads the shares of owners."""

    uses_shares: bool

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Turns, until no row has anything left.

        After each turn `queue.left` tells what is left: what was placed is gone from it, and rows
        that cannot be placed in this pass have nothing left either.
        """


# ------------------------------------------------------------------------------- selectors


@dataclass(frozen=True, slots=True)
class CellOffer:
    """The cells that tasks of one shape may go to, in order of name.

    `capacity`, `used`: resources x cells; `request`: of each task, by resource. `room`: how many
    of the tasks each cell can take, 0 where it may not be used. `sizes`: rank of each cell's total
    capacity in the pool, 0 the smallest, equal ones alike (`shares.capacity_ranks`). `start`: index
    of the first cell behind the one that got the last task (round-robin).
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
        """Return how many of `count` tasks each cell takes: at most `offer.room`, all if there is
        room.

        `count` is at most the sum of `offer.room`. Ties go by name (order), so that a plan is
        reproducible.
        """
