"""Sequencers by share: the owner or the project with the smallest share has the next turn.

A share is the dominant one of the pool (dominant resource fairness), updated during the pass; jobs
of one owner are FIFO, and only among them a moved job changes its place. Fair share divides it by
the owner's weight (of its quota). Fair projects selects a project by its share and weight, and then
one of its owners as fair share does.

A turn lasts until its owner exceeds the next one, so that at equal demand shares differ by at most
one task. While capacity suffices for all owners in any order, they are raised to one level
together, in fewer turns. The result is the same if the dominant resource of each task is the one of
its owner; other tasks raise the share less, which later turns compensate.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.model.interfaces import GuaranteedCapacity, Queue, Turn, Vector

_BISECTIONS = 40
# Raising the owners together must save turns per owner; otherwise it is tried again only after a
# number of turns per owner.
_WORTH_TURNS = 3
_PAUSE_TURNS = 8
_NO_END = 1 << 31


class _Line(Protocol):
    """The rows of one owner or project."""

    @property
    def key(self) -> int:
        """Return the id of the owner or project."""

    def skip(self, queue: Queue) -> bool:
        """Advance to the next row with remaining tasks; return whether there is one."""

    def share(self, queue: Queue) -> float:
        """Return the share, divided by the weight."""

    def each(self, queue: Queue) -> float:
        """Return the maximum by which the next task raises the share."""

    def head(self) -> int:
        """Return the row of the next task."""

    def run(self, queue: Queue) -> Vector:
        """Return the rows of the next turn."""

    def turn(self, queue: Queue, tasks: int) -> Turn:
        """Return the next turn, of at most `tasks` tasks."""


@dataclass(slots=True)
class _OwnerRows:
    """The rows of an owner in order, and the first with remaining tasks."""

    key: int
    weight: float
    rows: Vector
    first: int = 0

    def skip(self, queue: Queue) -> bool:
        """Advance to the first row with remaining tasks; return whether there is one."""
        while self.first < len(self.rows) and not queue.left[self.rows[self.first]]:
            self.first += 1
        return self.first < len(self.rows)

    def share(self, queue: Queue) -> float:
        return queue.share_of(self.key) / self.weight

    def each(self, queue: Queue) -> float:
        """Return the maximum by which the next task raises the share."""
        return queue.share_of_task(self.head()) / self.weight

    def head(self) -> int:
        return int(self.rows[self.first])

    def run(self, queue: Queue) -> Vector:
        """Return the run of rows with the shape of the first."""
        rows = self.rows[self.first :]
        others = np.flatnonzero(queue.shape[rows] != queue.shape[rows[0]])
        return rows[: others[0]] if len(others) else rows

    def turn(self, queue: Queue, tasks: int) -> Turn:
        """Return a turn with the rows of the run that `tasks` tasks need."""
        rows = self.run(queue)
        ends = np.cumsum(queue.left[rows])
        last = int(np.searchsorted(ends, tasks)) + 1
        return Turn(rows[:last], min(tasks, int(ends[-1])))


@dataclass(slots=True)
class _ProjectRows:
    """The owners of a project with remaining tasks; `current`: the one with the least share."""

    key: int
    weight: float
    owners: list[_OwnerRows]
    current: _OwnerRows
    ahead: float = np.inf

    def skip(self, queue: Queue) -> bool:
        self.owners = [owner for owner in self.owners if owner.skip(queue)]
        if not self.owners:
            return False
        shares = sorted((owner.share(queue), n) for n, owner in enumerate(self.owners))
        self.current = self.owners[shares[0][1]]
        self.ahead = shares[1][0] - shares[0][0] if len(shares) > 1 else np.inf
        return True

    def share(self, queue: Queue) -> float:
        return queue.share_of_project(self.key) / self.weight

    def each(self, queue: Queue) -> float:
        return queue.share_of_task(self.head()) / self.weight

    def head(self) -> int:
        return self.current.head()

    def run(self, queue: Queue) -> Vector:
        return self.current.run(queue)

    def turn(self, queue: Queue, tasks: int) -> Turn:
        """Return a turn that ends when the current owner exceeds the next one."""
        return self.current.turn(queue, min(tasks, _until(self.ahead, self.current.each(queue))))


def turns_by_share(queue: Queue, weight_of: Callable[[int], float]) -> Iterator[Turn]:
    """Yield turns of owners, least dominant share per weight first; FIFO within an owner."""
    every = np.arange(len(queue.left))
    return _turns(queue, _owner_lines(queue, every, weight_of), may_join=True)


def turns_by_project(queue: Queue) -> Iterator[Turn]:
    """Yield turns of projects, least dominant share per weight first; within one by owner."""
    lines: list[_ProjectRows] = []
    for project in np.unique(queue.project[queue.left > 0]).tolist():
        rows = np.flatnonzero(queue.project == project)
        owners = _owner_lines(queue, rows, queue.weight_of)
        lines.append(_ProjectRows(project, queue.weight_of_project(project), owners, owners[0]))
    if len(lines) == 1:
        return turns_by_share(queue, queue.weight_of)
    # The owners of a project take turns of a few tasks, which leaves nothing to raise together.
    return _turns(queue, lines, may_join=all(len(line.owners) == 1 for line in lines))


def _turns(queue: Queue, found: Sequence[_Line], *, may_join: bool) -> Iterator[Turn]:
    """Yield turns of the line with the least share; with `may_join`, raise lines together."""
    lines, pause = {line.key: line for line in found}, 0 if may_join else _NO_END
    while lines := {line.key: line for line in lines.values() if line.skip(queue)}:
        if len(lines) > 1 and not pause:
            heads = np.array([line.head() for line in lines.values()], dtype=np.int64)
            sure = queue.sure_room(heads)
            counts, is_worth_it = _together(queue, list(lines.values()), sure)
            for line, count in zip(list(lines.values()), counts, strict=True):
                if count:
                    yield line.turn(queue, count)
            pause = 0 if is_worth_it else _PAUSE_TURNS * len(lines)
        else:
            for turn in _one_by_one(queue, lines, pause or 1):
                pause = 0 if may_join else _NO_END
                yield turn


def _owner_lines(queue: Queue, rows: Vector, weight_of: Callable[[int], float]) -> list[_OwnerRows]:
    order = rows[np.lexsort((~queue.is_child[rows], queue.rank[rows], queue.owner[rows]))]
    order = order[queue.left[order] > 0]
    bounds = np.flatnonzero(np.diff(queue.owner[order])) + 1
    found = [rows for rows in np.split(order, bounds) if len(rows)]
    owners = [int(queue.owner[rows[0]]) for rows in found]
    return [
        _OwnerRows(owner, weight_of(owner), rows) for owner, rows in zip(owners, found, strict=True)
    ]


def _until(ahead: float, each: float) -> int:
    """Return the number of tasks after which a share has risen by more than `ahead`."""
    return int(min(ahead / each, _NO_END)) + 1 if each > 0 else _NO_END


def _one_by_one(queue: Queue, lines: dict[int, _Line], turns: int) -> Iterator[Turn]:
    heap = [(line.share(queue), key) for key, line in lines.items()]
    heapify(heap)
    while heap and turns > 0:
        share, key = heappop(heap)
        line = lines[key]
        if not line.skip(queue):
            continue
        ahead = heap[0][0] - share if heap else np.inf
        yield line.turn(queue, _until(ahead, line.each(queue)))
        turns -= 1
        heappush(heap, (line.share(queue), key))


def _together(
    queue: Queue, lines: list[_Line], sure: GuaranteedCapacity | None
) -> tuple[list[int], bool]:
    """Return the tasks that raise each owner to the highest common level with guaranteed room.

    The second value: whether that saves turns. Owners without room for their first row get a turn
    first, since other rows of theirs may fit.
    """
    if sure is None:
        return [0] * len(lines), False
    if (sure.room <= 0).any():
        return (sure.room <= 0).astype(int).tolist(), True
    shares = np.array([line.share(queue) for line in lines])
    each = np.array([line.each(queue) for line in lines])
    left = np.array([int(queue.left[line.run(queue)].sum()) for line in lines], dtype=np.int64)
    if not (each > 0).all():
        return [0] * len(lines), False
    low, high = float(shares.min()), float((shares + left * each).max())
    best = np.zeros(len(lines), dtype=np.int64)
    for _ in range(_BISECTIONS):
        level = (low + high) / 2
        counts = _raised_to(level, shares, each)
        if _is_sure(counts, left, sure):
            low, best = level, counts
        else:
            high = level
    return best.tolist(), int(best.sum()) > _WORTH_TURNS * len(lines)


def _raised_to(level: float, shares: NDArray[np.float64], each: NDArray[np.float64]) -> Vector:
    return np.ceil(np.maximum(level - shares, 0) / each).astype(np.int64)


def _is_sure(counts: Vector, left: Vector, sure: GuaranteedCapacity) -> bool:
    if int(counts.sum()) > sure.total or (counts > left).any():
        return False
    return bool((sure.weights @ counts <= sure.room)[counts > 0].all())


class Drf:
    """Sequencer for equal dominant shares."""

    uses_shares = True

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns, least share first."""
        return turns_by_share(queue, lambda owner: 1.0)


class FairShare:
    """Sequencer for dominant shares in proportion to weights."""

    uses_shares = True

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns, least share per weight first."""
        return turns_by_share(queue, queue.weight_of)


class FairProjects:
    """Sequencer for dominant shares of projects in proportion to weights, within one of owners."""

    uses_shares = True

    def turns(self, queue: Queue) -> Iterator[Turn]:
        """Return turns, least share per weight first."""
        return turns_by_project(queue)
