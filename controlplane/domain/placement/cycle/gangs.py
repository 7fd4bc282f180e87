"""Gangs: the minima of a coscheduled job are placed at once or not at all (Volcano: gang).

The pool's selector places the most constrained and largest members first. If that fails, `packing`
searches a packing, so that neither the order of groups in the job nor the selector decides whether
a gang starts. Members beyond the minima are placed one by one. `group_by` keeps all members on
cells with one value of a label.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.placement.cycle.packing import (
    MOST_NODES,
    PackingItem,
    SearchBudget,
    demand_of,
    find_packing,
    order_of,
)
from controlplane.domain.placement.cycle.pass_state import Pass
from controlplane.domain.placement.cycle.plan import UnplacedRow
from controlplane.domain.placement.cycle.quota_usage import QuotaAccounting
from controlplane.domain.placement.model.capacity_matrix import Mask
from controlplane.domain.placement.model.interfaces import Matrix, Vector
from controlplane.domain.placement.model.snapshot import GangFacts
from controlplane.domain.placement.reasons.explain import (
    INSUFFICIENT_RESOURCES,
    MEMBERS_NOT_READY,
    NO_CELL_MATCHES,
    Reason,
    explain_gang,
    explain_misfit,
)
from controlplane.domain.state.gangs import missing

# Nodes that the searches for all gangs of a pass may visit: some 0.2 s.
_NODES_PER_PASS = 20_000


@dataclass(frozen=True, slots=True)
class _PassCheckpoint:
    """The state of a pass before a trial."""

    board: tuple[Matrix, Matrix, Vector]
    usage: QuotaAccounting
    kept: dict[int, int]
    start: int


@dataclass(slots=True)
class _PlacementTrial:
    """The result of one trial to place a gang's minima.

    `count`: number of placed members. `why`: the reason of the first unplaced one. `is_refused`: a
    quota or the tokens prevent the placement on any cell.
    """

    placed: dict[int, Vector]
    count: int = 0
    row: int = -1
    why: Reason | None = None
    is_refused: bool = False

    @property
    def rank(self) -> tuple[bool, int]:
        """Return the order of trials: possible on cells with less usage first, then by count."""
        why = self.why or {}
        never = why.get("code") == NO_CELL_MATCHES or bool(why.get("never_fits"))
        return not never, self.count


@dataclass(frozen=True, slots=True)
class _GangRequirement:
    """The members to place at once: `needs` by group, and `extra` members of any group."""

    needs: dict[int, int]
    extra: int

    @property
    def total(self) -> int:
        """Return the number of members that must be placed at once."""
        return sum(self.needs.values()) + self.extra


class GangPlacer:
    """Placer of the gangs of a pass: each is placed once, at the turn of its first row."""

    def __init__(self, work: Pass) -> None:
        self._work = work
        self._rows: dict[int, list[int]] = defaultdict(list)
        for row, job_id in enumerate(work.waiting.job_ids if work.facts.gangs else ()):
            if job_id in work.facts.gangs:
                self._rows[job_id].append(row)
        # The cells (None: all) of gangs that this pass has started on reserved capacity. The
        # snapshot lacks those members.
        self._started: dict[int, Mask | None] = {}
        # Equal gangs share the reason of the first, since free capacity only shrinks in a pass.
        self._waiting: dict[object, Reason] = {}
        self._nodes = _NODES_PER_PASS

    def place(self, row: int) -> Sequence[int]:
        """Place the gang of the row as far as possible; return its rows, which are all done."""
        job_id = self._work.waiting.job_ids[row]
        rows = self._rows.pop(job_id, [])
        if not rows or self._work.stopped_by is not None:
            return rows
        if job_id in self._started:
            self._place_rest(rows, self._started[job_id])
            return rows
        gang = self._work.facts.gangs[job_id]
        wanted = _requirement_of(gang)
        kind = self._kind_of(gang, wanted, rows)
        reason = self._waiting.get(kind) if kind else None
        if reason is None:
            reason = self._place(gang, wanted, rows)
            if reason is not None and kind:
                self._waiting[kind] = reason
        if reason is not None:
            self._explain(rows, reason)
        return rows

    def honour_nominations(self, rows: Sequence[int]) -> None:
        """Place what gangs need at once on the capacity that is reserved for it.

        At their turn it would be too late: in a strict pool, the task that stops the pass cannot
        use this capacity, and gangs of two pools that reserve more than a quota would wait for
        each other.
        """
        work = self._work
        for job_id in dict.fromkeys(work.waiting.job_ids[row] for row in rows):
            reserved = [row for row in self._rows.get(job_id, ()) if row in work.kept]
            if not reserved or work.limit <= 0:
                continue
            gang = work.facts.gangs[job_id]
            for place in self._places(gang):
                if self._place_reserved(_requirement_of(gang), reserved, place):
                    self._started[job_id] = place
                    break

    def _place_reserved(
        self, wanted: _GangRequirement, rows: Sequence[int], place: Mask | None
    ) -> bool:
        """Place members on their reserved cells in `place`; return whether any was placed."""
        work, cells = self._work, [self._work.waiting.nominated_cell_ids[row] for row in rows]
        within = np.zeros(len(work.board.cells), dtype=bool)
        within[[work.board.index_of[cell] for cell in cells if cell is not None]] = True
        if place is not None:
            within &= place
        saved, left = self._save(), int(work.left[rows].sum())
        if wanted.total:
            tried = self._run_trial(wanted, rows, within, avoiding=False)
            if tried.why is not None:
                self._restore(saved)
                return False
            for row, given in tried.placed.items():
                work.columns_of_gang(row, given)
        else:  # the minima are met: each member is placed by itself
            for row, cell in zip(rows, cells, strict=True):
                if cell is not None:
                    here, picked = work.board.only(cell) & within, np.array([row], dtype=np.int64)
                    work.place_run(work.shape_of(row), picked, int(work.left[row]), here)
        for row in rows:
            self._keep_rest(row)
        return int(work.left[rows].sum()) < left

    def _place(
        self, gang: GangFacts, wanted: _GangRequirement, rows: Sequence[int]
    ) -> Reason | None:
        work = self._work
        best: _PlacementTrial | None = None
        for within in self._places(gang):
            saved = self._save()
            tried = self._run_trial(wanted, rows, within, self._avoids(wanted, rows, within))
            if tried.why is None:
                for row, given in tried.placed.items():
                    work.columns_of_gang(row, given)
                self._place_rest(rows, within, saved.kept.keys())
                return None
            self._restore(saved)
            if best is None or tried.rank > best.rank:
                best = tried
        if best is None:
            text = f"no ready cell has the label {gang.group_by}"
            why = {"code": NO_CELL_MATCHES, "text": text}
            work.stop_if_strict(np.array(rows, dtype=np.int64), why)
            return explain_gang(wanted.total, 0, why, gang.group_by)
        self._note_unplaced(gang, best, wanted, rows)
        for row in rows:
            work.usage.note_waiting(work.shape_of(row), int(work.left[row]))
        work.stop_if_strict(np.array(rows, dtype=np.int64), best.why or {})
        return explain_gang(wanted.total, best.count, best.why, gang.group_by)

    def _save(self) -> _PassCheckpoint:
        work = self._work
        return _PassCheckpoint(work.board.save(), work.usage.save(), dict(work.kept), work.start)

    def _restore(self, saved: _PassCheckpoint) -> None:
        """Restore the saved state, once."""
        work = self._work
        work.board.restore(saved.board)
        work.usage.restore(saved.usage)
        work.kept, work.start = saved.kept, saved.start

    def _avoids(self, wanted: _GangRequirement, rows: Sequence[int], within: Mask | None) -> bool:
        """Return whether the gang can be placed without the cells that its members avoid.

        If not even empty cells suffice, it uses the avoided cells, too; a starving gang uses them
        if it cannot be placed now without them.
        """
        work = self._work
        if all(work.waiting.avoid_cell_ids[row] is None for row in rows):
            return True
        saved = self._save()
        if not all(work.is_starving(row) for row in rows):
            work.board.clear()
            work.kept = {}
        tried = self._run_trial(wanted, rows, within, avoiding=True)
        self._restore(saved)
        return tried.why is None

    # ---------------------------------------------------------------------------- one try

    def _run_trial(
        self, wanted: _GangRequirement, rows: Sequence[int], within: Mask | None, avoiding: bool
    ) -> _PlacementTrial:
        """Take capacity for the minima as far as possible, in the matrix and the quota usage."""
        saved = self._save()
        tried = self._by_selector(wanted, rows, within, avoiding)
        if self._lacks_ready(wanted, rows):
            # Some members back off, or their last attempts are not released yet.
            return replace(tried, why=MEMBERS_NOT_READY, row=-1)
        if tried.why is None or tried.is_refused:
            return tried
        self._restore(saved)
        for row in rows:
            self._work.lift(row)
        packing = self._pack(wanted, rows, within, avoiding)
        return tried if packing is None else self._take(packing)

    def _lacks_ready(self, wanted: _GangRequirement, rows: Sequence[int]) -> bool:
        """Return whether fewer members are ready than must be placed at once."""
        ready: dict[int, int] = defaultdict(int)
        for row in rows:
            ready[self._work.waiting.group_ids[row]] += int(self._work.left[row])
        lacks = any(ready[group] < need for group, need in wanted.needs.items())
        return lacks or sum(ready.values()) < wanted.total

    def _items(
        self, wanted: _GangRequirement, rows: Sequence[int], within: Mask | None, avoiding: bool
    ) -> list[PackingItem]:
        work = self._work
        return [
            PackingItem(
                group=work.waiting.group_ids[row],
                request=work.board.vector(work.shape_of(row).resources),
                usable=work.usable(work.shape_of(row), row, within, avoiding=avoiding),
                most=int(work.left[row]),
            )
            for row in rows
        ]

    def _by_selector(
        self, wanted: _GangRequirement, rows: Sequence[int], within: Mask | None, avoiding: bool
    ) -> _PlacementTrial:
        """Place members by the pool's selector: first on reserved capacity, then elsewhere."""
        work, tried = self._work, _PlacementTrial({})
        for row in rows:  # reservations of the gang must not limit its own members
            work.usage.let_go(row)
        items = self._items(wanted, rows, within, avoiding)
        order = order_of(np.maximum(work.board.free, 0), items)
        nominated = [work.waiting.nominated_cell_ids[row] is not None for row in rows]
        # Rows that fit on no empty cell come last: another row may meet the minimum.
        never = [not work.board.room_when_empty(one.request, one.usable).any() for one in items]
        needs, extra, requested = dict(wanted.needs), wanted.extra, dict[int, int]()
        for at in sorted(order, key=lambda at: (never[at], not nominated[at])):
            group = items[at].group
            requested[at] = min(needs[group], items[at].most)
            needs[group] -= requested[at]
        for at in sorted(order, key=lambda at: not nominated[at]):
            self._add(tried, rows[at], items[at].usable, requested[at], whole=True)
        # Members for the job's own minimum: the least constrained and smallest first.
        for at in sorted(order, key=lambda at: (never[at], not nominated[at], -order.index(at))):
            given = tried.placed.get(rows[at])
            left = items[at].most - (0 if given is None else int(given.sum()))
            if extra and left:
                extra -= self._add(tried, rows[at], items[at].usable, min(extra, left))
        if extra == 0 and tried.count == wanted.total:
            tried.why = None
        return tried

    def _add(
        self, tried: _PlacementTrial, row: int, usable: Mask, wanted: int, *, whole: bool = False
    ) -> int:
        """Place `wanted` tasks of a row, record a reason for the rest; return the number placed."""
        if not wanted:
            return 0
        work, shape = self._work, self._work.shape_of(row)
        picked = np.array([row], dtype=np.int64)
        admitted, why = work.admit(shape, picked, wanted, whole=whole)
        placed = 0
        if admitted:
            given = self._give(row, admitted, usable)
            placed = int(given.sum())
            if placed:
                self._record(tried, row, given)
        if placed < wanted and tried.why is None:
            tried.row = row
            tried.is_refused = whole and why is not None
            tried.why = why or explain_misfit(shape, work.snapshot, work.board, usable)
        return placed

    def _record(self, tried: _PlacementTrial, row: int, given: Vector) -> None:
        work, placed = self._work, int(given.sum())
        tried.count += placed
        tried.placed[row] = given + tried.placed[row] if row in tried.placed else given
        work.move_on(given)
        work.usage.book(work.shape_of(row), {work.waiting.job_ids[row]}, placed)

    def _give(self, row: int, wanted: int, usable: Mask) -> Vector:
        """Place tasks of a row: first on reserved capacity, then on any free capacity."""
        work, shape = self._work, self._work.shape_of(row)
        total = np.zeros(len(work.board.cells), dtype=np.int64)
        cell_id, masks = work.waiting.nominated_cell_ids[row], [usable]
        if work.lift(row) and cell_id is not None:
            here = np.zeros(len(usable), dtype=bool)
            here[work.board.index_of[cell_id]] = True
            masks = [usable & here, usable]
        for mask in masks:
            left = wanted - int(total.sum())
            given = left and work.board.give(
                shape, left, mask, work.plugins.selector, work.start, at_once=True
            )
            if given is not None and left:
                total += given
        return total

    def _pack(
        self, wanted: _GangRequirement, rows: Sequence[int], within: Mask | None, avoiding: bool
    ) -> dict[int, Vector] | None:
        """Search a packing of all members that must be placed at once; return it by row."""
        items = self._items(wanted, rows, within, avoiding)
        demand = demand_of(items, wanted.needs, wanted.total)
        budget = SearchBudget(min(MOST_NODES, self._nodes))
        self._nodes -= budget.nodes
        found = find_packing(self._work.board.free, demand, budget)
        self._nodes += max(budget.nodes, 0)
        if found is None:
            return None
        return {row: given for row, given in zip(rows, found, strict=True) if given.any()}

    def _take(self, packing: dict[int, Vector]) -> _PlacementTrial:
        """Place the tasks of a packing if quotas and tokens admit it."""
        work, tried = self._work, _PlacementTrial({})
        for row, given in packing.items():
            shape, count = work.shape_of(row), int(given.sum())
            picked = np.array([row], dtype=np.int64)
            admitted, why = work.admit(shape, picked, count, whole=True)
            if not admitted:
                tried.row, tried.why, tried.is_refused = row, why, True
                return tried
            work.board.take(work.board.vector(shape.resources), given)
            self._record(tried, row, given)
        return tried

    # ---------------------------------------------------------------------------- the rest

    def _place_rest(
        self, rows: Sequence[int], within: Mask | None, kept: Collection[int] = ()
    ) -> None:
        """Place members beyond the minima, row by row, as many as fit.

        `kept`: rows with reserved capacity, which stays reserved for members that still wait, if
        a trial has lifted the reservations. They return before the first row, which must not use
        the quotas and capacity of the next.
        """
        work = self._work
        for row in rows:
            if row in kept:
                self._keep_rest(row)
        for row in rows:
            if work.left[row] and work.limit > 0 and work.stopped_by is None:
                picked = np.array([row], dtype=np.int64)
                _, why = work.place_run(work.shape_of(row), picked, int(work.left[row]), within)
                if why is not None:
                    work.group_reasons[work.waiting.group_ids[row]] = why
                    work.stop_if_strict(picked, why)

    def _keep_rest(self, row: int) -> None:
        """Reserve capacity again for the tasks of a row that still wait."""
        work = self._work
        if row in work.kept:  # the trial has released its share of the quotas
            work.usage.keep(row, work.shape_of(row), work.waiting.job_ids[row], work.kept[row])
        elif work.left[row]:
            work.keep(row)

    def _places(self, gang: GangFacts) -> Iterator[Mask | None]:
        """Yield the cells for the whole gang: all (None), or those of one value of its label."""
        if not gang.group_by:
            yield None
            return
        board = self._work.board
        indices = [board.index_of[cell] for cell in gang.cell_ids if cell in board.index_of]
        for mask in board.with_label(gang.group_by).values():
            # Active members determine the value.
            if not gang.cell_ids or any(mask[index] for index in indices):
                yield mask

    def _kind_of(self, gang: GangFacts, wanted: _GangRequirement, rows: Sequence[int]) -> object:
        """Return a key that is equal for interchangeable gangs; None: it is unlike any other."""
        waiting = self._work.waiting
        if gang.cell_ids or self._work.is_special[rows].any() or self._work.snapshot.quotas:
            return None
        order = {group_id: place for place, group_id in enumerate(gang.group_ids)}
        members = [
            (order[waiting.group_ids[row]], waiting.shape_ids[row], int(self._work.left[row]))
            for row in rows
        ]
        return gang.group_by, tuple(wanted.needs.values()), wanted.extra, tuple(members)

    def _explain(self, rows: Sequence[int], reason: Reason) -> None:
        for row in rows:
            self._work.group_reasons[self._work.waiting.group_ids[row]] = reason

    def _note_unplaced(
        self, gang: GangFacts, tried: _PlacementTrial, wanted: _GangRequirement, rows: Sequence[int]
    ) -> None:
        """Record the gang as a preemption candidate, if enough members are ready."""
        work = self._work
        nominated = [row for row in rows if work.waiting.nominated_cell_ids[row] is not None]
        if tried.why is None or tried.row < 0 or nominated:
            return
        places = [(within, self._avoids(wanted, rows, within)) for within in self._places(gang)]
        shares = self._share(wanted, rows)
        if not shares:
            return
        first, *others = [
            self._unplaced(row, count, wanted, places) for row, count in shares.items()
        ]
        lacks_room = tried.why.get("code") == INSUFFICIENT_RESOURCES
        one = replace(first, others=tuple(others), lacks_room=lacks_room)
        work.note_gang(one, tried.why)

    def _share(self, wanted: _GangRequirement, rows: Sequence[int]) -> dict[int, int]:
        """Propose the members for which capacity is freed, by row; none if too few are ready.

        The smallest members are proposed for the job's own minimum. Rows with members come first.
        """
        work, needs, extra = self._work, dict(wanted.needs), wanted.extra
        shares: dict[int, int] = {}
        for row in rows:
            group_id = work.waiting.group_ids[row]
            shares[row] = min(needs[group_id], int(work.left[row]))
            needs[group_id] -= shares[row]
        largest = np.maximum(work.board.capacity.max(axis=1, initial=1), 1)

        def size(row: int) -> float:
            request = work.board.vector(work.shape_of(row).resources)
            return float((request / largest).max(initial=0.0))

        for row in sorted(rows, key=size):
            more = min(extra, int(work.left[row]) - shares[row])
            shares[row] += more
            extra -= more
        is_enough = not extra and not any(needs.values())
        if not is_enough:
            return {}
        return dict(sorted(shares.items(), key=lambda share: share[1] == 0))

    def _unplaced(
        self,
        row: int,
        count: int,
        wanted: _GangRequirement,
        places: Sequence[tuple[Mask | None, bool]],
    ) -> UnplacedRow:
        """`places`: cells for the whole gang, and whether it leaves out the avoided ones there."""
        work, shape = self._work, self._work.shape_of(row)
        usable = tuple(
            work.usable(shape, row, within, avoiding=avoiding) for within, avoiding in places
        )
        return UnplacedRow(
            row,
            shape,
            count,
            usable,
            is_gang=True,
            least=wanted.needs[work.waiting.group_ids[row]],
            most=int(work.left[row]),
            is_new_job=not work.usage.is_counted(shape, work.waiting.job_ids[row]),
        )


def _requirement_of(gang: GangFacts) -> _GangRequirement:
    needs, extra = missing(gang.groups, gang.min_available)
    return _GangRequirement(dict(zip(gang.group_ids, needs, strict=True)), extra)
