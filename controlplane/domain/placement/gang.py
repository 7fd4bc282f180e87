"""Gangs: the minima of a coscheduled job are placed at once or not at all (Volcano: gang).

The rest of its members come as they come. `group_by` keeps all of them on cells that share the
value of a label.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.domain.gangs import missing
from controlplane.domain.placement.board import Mask
from controlplane.domain.placement.explain import (
    NO_CELL_MATCHES,
    Reason,
    explain_gang,
    explain_misfit,
)
from controlplane.domain.placement.interfaces import Matrix, Vector
from controlplane.domain.placement.ledger import Ledger
from controlplane.domain.placement.one_pass import Pass
from controlplane.domain.placement.plan import Unplaced
from controlplane.domain.placement.snapshot import GangFacts


@dataclass(frozen=True, slots=True)
class _Saved:
    """The state of a pass before a try."""

    board: tuple[Matrix, Matrix, Vector]
    books: Ledger
    kept: dict[int, int]
    start: int


@dataclass(slots=True)
class _Try:
    """What one try to place a gang's minima came to. `why`: what stood against the rest."""

    placed: list[tuple[int, Vector]]
    count: int = 0
    row: int = -1
    why: Reason | None = None

    @property
    def rank(self) -> tuple[bool, int]:
        """The more, the better; but best where it could come true once others have left."""
        why = self.why or {}
        never = why.get("code") == NO_CELL_MATCHES or bool(why.get("never_fits"))
        return not never, self.count


class Gangs:
    """The gangs of a pass; each is dealt with once, when the first of its rows has its turn."""

    def __init__(self, work: Pass) -> None:
        self._work = work
        self._rows: dict[int, list[int]] = defaultdict(list)
        for row, job_id in enumerate(work.waiting.job_ids if work.facts.gangs else ()):
            if job_id in work.facts.gangs:
                self._rows[job_id].append(row)
        # Of gangs that are alike the first tells for all: room only shrinks in a pass.
        self._waiting: dict[object, Reason] = {}

    def place(self, row: int) -> Sequence[int]:
        """Place the gang that the row belongs to, as far as it goes; its rows, all dealt with."""
        job_id = self._work.waiting.job_ids[row]
        rows = self._rows.pop(job_id, [])
        if not rows or self._work.stopped_by is not None:
            return rows
        gang = self._work.facts.gangs[job_id]
        needs = dict(zip(gang.group_ids, missing(gang.groups, gang.min_available), strict=True))
        kind = self._kind_of(gang, needs, rows)
        reason = self._waiting.get(kind) if kind else None
        if reason is None:
            reason = self._place(gang, needs, rows)
            if reason is not None and kind:
                self._waiting[kind] = reason
        if reason is not None:
            self._explain(rows, reason)
        return rows

    def _place(self, gang: GangFacts, needs: dict[int, int], rows: Sequence[int]) -> Reason | None:
        work, need = self._work, sum(needs.values())
        best: _Try | None = None
        for within in self._places(gang):
            saved = self._save()
            tried = self._try(dict(needs), rows, within, self._avoids(needs, rows, within))
            if tried.why is None:
                for row, given in tried.placed:
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
            return explain_gang(need, 0, why, gang.group_by)
        self._note_unplaced(gang, best, needs, rows)
        for row in rows:
            work.ledger.note_waiting(work.shape_of(row), int(work.left[row]))
        work.stop_if_strict(np.array(rows, dtype=np.int64), best.why or {})
        return explain_gang(need, best.count, best.why, gang.group_by)

    def _save(self) -> _Saved:
        work = self._work
        return _Saved(work.board.save(), work.ledger.save(), dict(work.kept), work.start)

    def _restore(self, saved: _Saved) -> None:
        work = self._work
        work.board.restore(saved.board)
        work.ledger.restore(saved.books)
        work.kept, work.start = saved.kept, saved.start

    def _avoids(self, needs: dict[int, int], rows: Sequence[int], within: Mask | None) -> bool:
        """Whether the gang could ever be placed without the cells that its members avoid.

        One that could not goes to these, too: else it would wait for ever.
        """
        work = self._work
        if all(work.waiting.avoid_cell_ids[row] is None for row in rows):
            return True
        saved = self._save()
        work.board.clear(work.snapshot.policy.max_building_per_cell)
        work.kept = {}
        tried = self._try(dict(needs), rows, within, avoiding=True)
        self._restore(saved)
        return tried.why is None

    def _try(
        self, needs: dict[int, int], rows: Sequence[int], within: Mask | None, avoiding: bool
    ) -> _Try:
        """Take what the minima need, as far as it goes: the board and the books are changed."""
        work, tried = self._work, _Try([])
        for row in rows:  # what is kept for some of them stands against none of them
            work.ledger.let_go(row)
        for row in rows:
            group_id = work.waiting.group_ids[row]
            wanted = min(needs[group_id], int(work.left[row]))
            if not wanted:
                continue
            shape, picked = work.shape_of(row), np.array([row], dtype=np.int64)
            admitted, why = work.admit(shape, picked, wanted, whole=True)
            usable = work.usable(shape, row, within, avoiding=avoiding)
            given = np.zeros(len(work.board.cells), dtype=np.int64)
            if admitted:
                given = self._give(row, wanted, usable)
            placed = int(given.sum())
            tried.count += placed
            needs[group_id] -= placed
            if placed:
                tried.placed.append((row, given))
                work.move_on(given)
                work.ledger.book(shape, {work.waiting.job_ids[row]}, placed)
            if placed < wanted:
                tried.row = row
                tried.why = why or explain_misfit(shape, work.snapshot, work.board, usable)
                return tried
        if any(needs.values()):
            # Some members are not ready: they back off, or their containers are not gone yet.
            tried.why = {"text": "the others are not ready yet"}
        return tried

    def _give(self, row: int, wanted: int, usable: Mask) -> Vector:
        """Place tasks of a row: first where room was kept for them, then wherever there is some."""
        work, shape = self._work, self._work.shape_of(row)
        total = np.zeros(len(work.board.cells), dtype=np.int64)
        cell_id, masks = work.waiting.nominated_cell_ids[row], [usable]
        if work.lift(row) and cell_id is not None:
            here = np.zeros(len(usable), dtype=bool)
            here[work.board.index_of[cell_id]] = True
            masks = [usable & here, usable]
        for mask in masks:
            left = wanted - int(total.sum())
            given = left and work.board.give(shape, left, mask, work.plugins.selector, work.start)
            if given is not None and left:
                total += given
        return total

    def _place_rest(self, rows: Sequence[int], within: Mask | None, kept: Collection[int]) -> None:
        """Members beyond the minima, one row after the other, as many as there is room for.

        `kept`: the rows for which room was kept; it goes on for those of them that wait on.
        """
        work = self._work
        for row in rows:
            if work.left[row] and work.limit > 0 and work.stopped_by is None:
                picked = np.array([row], dtype=np.int64)
                _, why = work.place_run(work.shape_of(row), picked, int(work.left[row]), within)
                if why is not None:
                    work.group_reasons[work.waiting.group_ids[row]] = why
                    work.stop_if_strict(picked, why)
            if row in kept and row not in work.kept and work.left[row]:
                work.keep(row)
            elif row in work.kept:
                work.ledger.keep(row, work.shape_of(row), work.waiting.job_ids[row], work.kept[row])

    def _places(self, gang: GangFacts) -> Iterator[Mask | None]:
        """Where all of the gang may be: anywhere, or on the cells of one value of its label."""
        if not gang.group_by:
            yield None
            return
        board = self._work.board
        indices = [board.index_of[cell] for cell in gang.cell_ids if cell in board.index_of]
        for mask in board.with_label(gang.group_by).values():
            # Members that are there already decide for all.
            if not gang.cell_ids or any(mask[index] for index in indices):
                yield mask

    def _kind_of(self, gang: GangFacts, needs: dict[int, int], rows: Sequence[int]) -> object:
        """What is the same for gangs that fit the same places; None: it is like no other."""
        waiting = self._work.waiting
        if gang.cell_ids or self._work.is_special[rows].any() or self._work.snapshot.quotas:
            return None
        order = {group_id: place for place, group_id in enumerate(gang.group_ids)}
        members = [
            (order[waiting.group_ids[row]], waiting.shape_ids[row], int(self._work.left[row]))
            for row in rows
        ]
        return gang.group_by, tuple(needs.values()), tuple(members)

    def _explain(self, rows: Sequence[int], reason: Reason) -> None:
        for row in rows:
            self._work.group_reasons[self._work.waiting.group_ids[row]] = reason

    def _note_unplaced(
        self, gang: GangFacts, tried: _Try, needs: dict[int, int], rows: Sequence[int]
    ) -> None:
        """Let room be made for all that the gang needs, if all of it is ready."""
        work = self._work
        nominated = [row for row in rows if work.waiting.nominated_cell_ids[row] is not None]
        if tried.why is None or tried.row < 0 or nominated:
            return
        places = [(within, self._avoids(needs, rows, within)) for within in self._places(gang)]
        needs, missing_rows = dict(needs), list[Unplaced]()
        for row in rows:
            group_id = work.waiting.group_ids[row]
            count = min(needs[group_id], int(work.left[row]))
            if count:
                needs[group_id] -= count
                missing_rows.append(self._unplaced(row, count, places))
        if any(needs.values()) or not missing_rows:
            return
        one = replace(missing_rows[0], others=tuple(missing_rows[1:]))
        work.note_gang(one, tried.why)

    def _unplaced(
        self, row: int, count: int, places: Sequence[tuple[Mask | None, bool]]
    ) -> Unplaced:
        """`places`: where all of the gang may be, and whether it avoids what it would there."""
        work, shape = self._work, self._work.shape_of(row)
        usable = tuple(
            work.usable(shape, row, within, avoiding=avoiding) for within, avoiding in places
        )
        is_new = not work.ledger.is_running(shape, work.waiting.job_ids[row])
        return Unplaced(row, shape, count, usable, is_gang=True, is_new_job=is_new)
