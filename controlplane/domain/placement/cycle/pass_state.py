"""State of one scheduling pass: capacity matrix, quota usage, remaining rows; places rows.

`place` defines the order of rows; gangs are in `gangs`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from controlplane.domain.placement.cycle.band_queue import BandQueue
from controlplane.domain.placement.cycle.pending_columns import PendingColumns
from controlplane.domain.placement.cycle.plan import PlacementColumns, PlacementPlan, UnplacedRow
from controlplane.domain.placement.cycle.quota_usage import QuotaAccounting
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix, Mask
from controlplane.domain.placement.model.interfaces import (
    Request,
    Selector,
    Sequencer,
    ValidationFailure,
    Validator,
    Vector,
)
from controlplane.domain.placement.model.snapshot import PassFacts, PoolSnapshot, ShapeFacts
from controlplane.domain.placement.plugins.validators.quotas import QUOTA_EXCEEDED
from controlplane.domain.placement.reasons.explain import (
    BUILD_SLOTS_FULL,
    INSUFFICIENT_RESOURCES,
    INSUFFICIENT_TOKENS,
    NO_CELL_MATCHES,
    Reason,
    explain_behind,
    explain_misfit,
    explain_tokens,
    explain_violations,
)
from controlplane.domain.state.effects import ExplainGroup, ExplainShape, RejectGroup

# Time that a backfilled task needs for start and stop, beyond its timeout.
_BACKFILL_MARGIN = timedelta(seconds=60)
# Reasons about cells; all others hold for any cell.
_MISFITS = frozenset({NO_CELL_MATCHES, INSUFFICIENT_RESOURCES, BUILD_SLOTS_FULL})
# Maximum number of rows that are candidates for preemption; further ones wait.
_MOST_UNPLACED = 200


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins that a pool's policy names."""

    sequencer: Sequencer
    selector: Selector
    validators: tuple[Validator, ...]


class Pass:
    """The state of one pass: capacity matrix, quota usage, and remaining tasks of each row."""

    def __init__(
        self,
        snapshot: PoolSnapshot,
        facts: PassFacts,
        plugins: Plugins,
        limit: int,
        board: CapacityMatrix | None = None,
    ) -> None:
        self.snapshot, self.facts, self.plugins = snapshot, facts, plugins
        self.waiting = facts.waiting
        self.shapes = {shape.shape_id: shape for shape in snapshot.shapes}
        self.rows = PendingColumns(facts.waiting, snapshot.shapes)
        self.board = board or CapacityMatrix(
            snapshot.cells, snapshot.shapes, snapshot.policy.tokens
        )
        self.usage = QuotaAccounting(snapshot)
        self.columns = PlacementColumns(facts.waiting, snapshot)
        self.limit = limit
        self.left: Vector = np.array(facts.waiting.counts, dtype=np.int64)
        self.kept: dict[int, int] = {}
        self.closed: set[int] = set()
        self.shape_reasons: dict[int, Reason] = {}
        self.group_reasons: dict[int, Reason] = {}
        self.rejected: dict[int, Reason] = {}
        self.unplaced: list[UnplacedRow] = []
        self.stopped_by: int | None = None
        self.start = self._find_start()
        self.is_special = self.rows.is_special

    def _find_start(self) -> int:
        names = [cell.name for cell in self.snapshot.cells]
        behind = [index for index, name in enumerate(names) if name > self.snapshot.policy.cursor]
        return behind[0] if behind and self.snapshot.policy.cursor else 0

    def place_rows(self, queue: BandQueue, shape: ShapeFacts, rows: Vector, tasks: int) -> None:
        """Place rows: equal rows together; with avoided cells, nominations or job limits apart."""
        is_alone = self.any_special(rows) or self.usage.is_bound_by_jobs(shape)
        for picked in np.split(rows, len(rows)) if is_alone else (rows,):
            if tasks <= 0 or self.limit <= 0 or self.stopped_by is not None:
                return
            wanted = min(tasks, int(self.left[picked].sum()))
            there = self.place_where_preferred(shape, picked, wanted)
            tasks -= there
            if there == wanted:
                continue
            placed, reason = self.place_run(shape, picked, wanted - there)
            tasks -= placed
            if reason is None:
                continue
            self.stop_if_strict(picked, reason)
            self.usage.note_waiting(shape, int(self.left[picked].sum()))
            if self.any_special(picked) or (is_alone and "violations" in reason):
                # The reason does not hold for rows without avoided cells or of running jobs.
                queue.close_rows(picked.tolist())
                self.shape_reasons.setdefault(shape.shape_id, reason)
            else:
                self.shape_reasons[shape.shape_id] = reason
                self.closed.add(shape.shape_id)
                queue.close(shape.shape_id)
            self._note_unplaced(shape, picked, reason)

    def place_where_preferred(self, shape: ShapeFacts, rows: Vector, wanted: int) -> int:
        """Place tasks on their preferred cells while these have capacity; return the number."""
        if not self.rows.any_prefers:
            return 0
        request, placed = self.board.vector(shape.resources), 0
        for row in rows[self.rows.prefers[rows]].tolist():
            cell_id = self.waiting.prefer_cell_ids[row]
            if placed == wanted or self.limit <= 0:
                break
            if cell_id is None or not self.board.has_room_on(cell_id, request):
                continue
            one, left = np.array([row], dtype=np.int64), int(self.left[row])
            here = self.board.only(cell_id)
            placed += self.place_run(shape, one, min(wanted - placed, left), here)[0]
        return placed

    def any_special(self, rows: Vector) -> bool:
        """Return whether any of the rows avoids a cell or has a nomination."""
        return self.rows.any_special and bool(self.rows.is_special[rows].any())

    # ---------------------------------------------------------------------------- placing

    def place_run(
        self, shape: ShapeFacts, rows: Vector, wanted: int, within: Mask | None = None
    ) -> tuple[int, Reason | None]:
        """Place up to `wanted` tasks of one shape; return the number, and the others' reason."""
        row = int(rows[0])
        was_kept = self.lift(row)
        found = self._place_run(shape, rows, wanted, within)
        if was_kept and self.left[row]:
            self.keep(row)
        return found

    def _place_run(
        self, shape: ShapeFacts, rows: Vector, wanted: int, within: Mask | None
    ) -> tuple[int, Reason | None]:
        usable = self.usable(shape, int(rows[0]), within)
        wanted, total = min(wanted, self.limit), 0
        while total < wanted:
            admitted, reason = self.admit(shape, rows, wanted - total)
            if not admitted:
                return total, reason
            given = self.board.give(shape, admitted, usable, self.plugins.selector, self.start)
            if given is None and within is None:
                given = self._backfill(shape, rows, admitted, usable)
            placed = 0 if given is None else int(given.sum())
            if given is not None:
                self.book(shape, rows, given)
                total += placed
            if placed < admitted:
                return total, explain_misfit(shape, self.snapshot, self.board, usable)
        return total, None

    def usable(
        self,
        shape: ShapeFacts,
        row: int,
        within: Mask | None = None,
        *,
        avoiding: bool | None = None,
    ) -> Mask:
        """Return the cells `within` that may take the row's tasks.

        `avoiding`: whether avoided cells are left out; None: all of them if another cell could take
        a task, else the latest if another cell could. For a starving row, the other cells must have
        room now, since their tasks may run as long as it waits.
        """
        usable = self.board.usable(shape)
        if within is not None:
            usable = usable & within
        index_of = self.board.index_of
        known = self.waiting.avoid_cell_ids[row] or ()
        avoided = [index_of[cell_id] for cell_id in known if cell_id in index_of]
        if not avoided or avoiding is False:
            return usable
        request = self.board.vector(shape.resources)
        # If no other cell could ever take a task, avoided cells are used.
        room = self.board.room if self.is_starving(row) else self.board.room_when_empty
        for indices in (avoided, avoided[-1:]):
            others = usable.copy()
            others[indices] = False
            if avoiding or room(request, others).any():
                return others
        return usable

    def is_starving(self, row: int) -> bool:
        """Return whether the tasks of the row have waited longer than the pool's limit."""
        return self.snapshot.policy.is_starving(self.waiting.since[row], self.snapshot.now)

    def admit(
        self, shape: ShapeFacts, rows: Vector, tasks: int, *, whole: bool = False
    ) -> tuple[int, Reason | None]:
        """Return how many tasks validators, tokens and key admit, and the reason against more."""
        row = int(rows[0])
        job_id = self.waiting.job_ids[row]
        request = Request(
            shape=shape,
            tasks=tasks,
            resources=shape.resources,
            quotas=self.usage.quotas_of(shape, job_id),
            now=self.snapshot.now,
            startable_at=self.waiting.since[row],
            new_jobs=0 if self.usage.is_running(shape, job_id) else 1,
            is_whole=whole,
        )
        admitted, violations = check_all(self.plugins.validators, request)
        for room in (self.usage.tokens_for(shape), self.usage.keys.room(shape.concurrency)):
            if room is not None:
                admitted = min(admitted, room)
        if admitted >= tasks:
            return tasks, None
        if admitted < 1 and tasks > 1 and not whole:
            # The violation of many tasks may not hold for a single one.
            return self.admit(shape, rows, 1)
        if violations:
            reason = explain_violations(violations)
            final = [item for item in violations if item.is_final]
            for one in rows.tolist() if final else ():
                self.rejected[self.waiting.group_ids[one]] = explain_violations(final)
        else:
            reason = self._explain_limits(shape, tasks, whole=whole)
        return 0 if whole else max(admitted, 0), reason

    def _explain_limits(self, shape: ShapeFacts, tasks: int, *, whole: bool) -> Reason:
        """Return why tokens or the concurrency key admit fewer than `tasks` tasks."""
        missing, rule = self.usage.missing_tokens(shape, tasks if whole else 1), shape.concurrency
        if missing or rule is None:
            return explain_tokens(missing)
        is_full = self.usage.keys.room(rule) == 0
        return self.usage.keys.explain(rule, 1 if is_full and not whole else tasks)

    def book(self, shape: ShapeFacts, rows: Vector, given: Vector) -> None:
        """Record the placement of the first tasks of `rows`, `given` by cell."""
        placed = int(given.sum())
        left = self.left[rows]
        counts = np.maximum(np.minimum(placed - (np.cumsum(left) - left), left), 0)
        self.left[rows] = left - counts
        self.limit -= placed
        self.columns.add(rows, counts, given)
        taken = rows[counts > 0].tolist()
        self.usage.book(shape, {self.waiting.job_ids[row] for row in taken}, placed)
        self.move_on(given)

    def move_on(self, given: Vector) -> None:
        """Set the round-robin cursor after the cell that got the last of `given`."""
        if not self.plugins.selector.keeps_place or not given.any():
            return
        order = np.roll(np.arange(len(given)), -self.start)
        most = order[given[order] == given.max()]
        self.start = (int(most[-1]) + 1) % len(given)

    def columns_of_gang(self, row: int, given: Vector) -> None:
        """Record placed members; their capacity and quota usage is already charged."""
        placed = int(given.sum())
        self.left[row] -= placed
        self.limit -= placed
        self.columns.add(np.array([row], dtype=np.int64), np.array([placed], dtype=np.int64), given)

    def shape_of(self, row: int) -> ShapeFacts:
        """Return the shape of a row."""
        return self.shapes[self.waiting.shape_ids[row]]

    # ---------------------------------------------------------------------------- reservations

    def honour_nominations(self, rows: Sequence[int]) -> None:
        """Place nominated tasks on their reserved capacity; the rest of it stays reserved."""
        for row in rows:
            cell_id = self.waiting.nominated_cell_ids[row]
            if cell_id is None or cell_id not in self.board.index_of:
                continue
            shape = self.shape_of(row)
            picked = np.array([row], dtype=np.int64)
            if not shape.coscheduled and self.limit > 0:
                here = self.board.only(cell_id)
                self.place_run(shape, picked, int(self.left[row]), here)
            if self.left[row]:
                self.keep(row)

    def keep(self, row: int) -> None:
        """Reserve capacity for the remaining tasks of a nominated row."""
        shape, count = self.shape_of(row), int(self.left[row])
        cell_id = self.waiting.nominated_cell_ids[row]
        assert cell_id is not None, "only nominated rows have reservations"
        self.board.keep(cell_id, self.board.vector(shape.resources), count)
        self.usage.keep(row, shape, self.waiting.job_ids[row], count)
        self.kept[row] = count

    def lift(self, row: int) -> bool:
        """Drop the reservation of a row; return whether there was one."""
        self.usage.let_go(row)
        count, cell_id = self.kept.pop(row, 0), self.waiting.nominated_cell_ids[row]
        if count and cell_id is not None:
            self.board.keep(cell_id, self.board.vector(self.shape_of(row).resources), -count)
        return count > 0

    def _backfill(
        self, shape: ShapeFacts, rows: Vector, wanted: int, usable: Mask
    ) -> Vector | None:
        """Place tasks on reserved capacity if they certainly end before it is needed."""
        limits = [self.waiting.timeout_seconds[row] for row in rows.tolist()]
        if any(limit is None for limit in limits):
            return None
        longest = max(limit for limit in limits if limit is not None)
        ends_at = self.snapshot.now + timedelta(seconds=longest) + _BACKFILL_MARGIN
        begins = {item.cell_id: item.begins_at for item in self.snapshot.nominations}
        lifted, here = list[int](), np.zeros(len(self.board.cells), dtype=bool)
        for row, count in self.kept.items():
            cell_id = self.waiting.nominated_cell_ids[row]
            begins_at = None if cell_id is None else begins.get(cell_id)
            if count and cell_id is not None and begins_at is not None and ends_at <= begins_at:
                lifted.append(row)
                here[self.board.index_of[cell_id]] = True
        if not lifted:
            return None
        for row in lifted:
            self._shift_kept(row, -1)
        given = self.board.give(shape, wanted, usable & here, self.plugins.selector, self.start)
        for row in lifted:
            self._shift_kept(row, 1)
        return given

    def _shift_kept(self, row: int, sign: int) -> None:
        cell_id = self.waiting.nominated_cell_ids[row]
        assert cell_id is not None, "only nominated rows have reservations"
        request = self.board.vector(self.shape_of(row).resources)
        self.board.keep(cell_id, request, sign * self.kept[row])

    # ---------------------------------------------------------------------------- waiting rows

    def stop_if_strict(self, rows: Vector, reason: Reason) -> None:
        """Stop the pass after an unplaced row if the pool is strict."""
        if self.snapshot.policy.strict_fifo and reason.get("code") in _MISFITS:
            waiting = rows[self.left[rows] > 0]
            self.stopped_by = self.waiting.job_ids[int(waiting[0])]

    def note_gang(self, gang: UnplacedRow, reason: Mapping[str, object]) -> None:
        """Record a gang that did not fit as a candidate for preemption."""
        if is_curable(reason) and len(self.unplaced) < _MOST_UNPLACED:
            self.unplaced.append(gang)

    def _note_unplaced(self, shape: ShapeFacts, rows: Vector, reason: Mapping[str, object]) -> None:
        if len(self.unplaced) >= _MOST_UNPLACED or not is_curable(reason):
            return
        for row in rows[self.left[rows] > 0].tolist()[:_MOST_UNPLACED]:
            if self.waiting.nominated_cell_ids[row] is None:
                one = UnplacedRow(
                    row,
                    shape,
                    int(self.left[row]),
                    (self.usable(shape, row),),
                    lacks_room=reason["code"] == INSUFFICIENT_RESOURCES,
                    is_new_job=not self.usage.is_counted(shape, self.waiting.job_ids[row]),
                )
                self.unplaced.append(one)

    def plan(self, *, is_cut: bool = False) -> PlacementPlan:
        """Return the plan. `is_cut`: the time or the size limit was reached."""
        rejected = tuple(RejectGroup(group, why) for group, why in sorted(self.rejected.items()))
        explained = dict(self._shape_explanations())
        return PlacementPlan(
            placements=self.columns.placements(),
            shapes=tuple(
                ExplainShape(shape_id, reason)
                for shape_id, reason in explained.items()
                if reason != self.shapes[shape_id].reason
            ),
            explained=frozenset(explained),
            groups=self._group_explanations(),
            rejected=rejected,
            unplaced=tuple(self.unplaced),
            complete=self.facts.is_whole and not (is_cut or self.limit <= 0),
            cursor=self._cursor(),
            board=self.board,
            usage=self.usage,
        )

    def _cursor(self) -> str:
        """Return the cell that got the last task, for a selector that continues after it."""
        if not self.plugins.selector.keeps_place or not self.columns.collected:
            return ""
        return self.snapshot.cells[self.start - 1].name

    def _shape_explanations(self) -> Iterator[tuple[int, Reason | None]]:
        """Yield the reasons of shapes; unreached ones keep theirs, placed ones have None."""
        for shape_id, left in self.rows.waiting_by_shape(self.left).items():
            shape = self.shapes[shape_id]
            if shape.coscheduled:
                continue
            reason = self.shape_reasons.get(shape_id) if left else None
            if reason is None and not left and shape_id in self.facts.partial:
                continue  # further rows of the shape wait that were not read
            if reason is None and left:
                if self.stopped_by is None:
                    continue
                reason = explain_behind(self.stopped_by)
            yield shape_id, reason

    def _group_explanations(self) -> tuple[ExplainGroup, ...]:
        if not self.facts.gangs:
            return ()
        known = dict(zip(self.waiting.group_ids, self.waiting.reasons, strict=True))
        if self.stopped_by is not None:
            gangs = (
                group_id
                for group_id, shape_id in zip(
                    self.waiting.group_ids, self.waiting.shape_ids, strict=True
                )
                if self.shapes[shape_id].coscheduled
            )
            for group_id in gangs:
                self.group_reasons.setdefault(group_id, explain_behind(self.stopped_by))
        return tuple(
            ExplainGroup(group_id, reason)
            for group_id, reason in sorted(self.group_reasons.items())
            if known.get(group_id) != reason
        )


def is_curable(reason: Mapping[str, Any]) -> bool:
    """Return whether preemption could resolve the reason: a cell, a quota or tokens."""
    if reason.get("never_fits"):
        return False
    if reason.get("code") in (INSUFFICIENT_RESOURCES, INSUFFICIENT_TOKENS):
        return True
    return all(
        item["code"] == QUOTA_EXCEEDED and item.get("what") != "pending_tasks"
        for item in reason.get("violations", [{"code": ""}])
    )


def check_all(
    validators: Sequence[Validator], request: Request
) -> tuple[int, tuple[ValidationFailure, ...]]:
    """Return the combined result of all validators: the fewest admitted, and every violation."""
    admitted, violations = request.tasks, list[ValidationFailure]()
    for validator in validators:
        verdict = validator.check(request)
        admitted = min(admitted, verdict.admitted)
        violations += verdict.violations
    return admitted, tuple(violations)
