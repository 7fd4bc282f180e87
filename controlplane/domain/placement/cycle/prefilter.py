"""Prefilter, the first step of a pass: find the shapes that could be placed at all.

There are few shapes, even if many tasks wait. A shape that fits nowhere or exceeds its quota gets
its reason here, and its rows are not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.domain.placement.cycle.pass_state import Plugins, check_all
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.quota_usage import QuotaAccounting
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.interfaces import Request
from controlplane.domain.placement.model.snapshot import PassFacts, PoolSnapshot, ShapeFacts
from controlplane.domain.placement.reasons.explain import (
    CONCURRENCY_LIMIT,
    Reason,
    explain_misfits,
    explain_tokens,
    explain_violations,
)
from controlplane.domain.state.effects import ExplainShape
from controlplane.domain.state.states import Band


@dataclass(frozen=True, slots=True)
class PrefilterResult:
    """Shapes by the rows to read: all (`full`), or only the first, for preemption (`heads`).

    `of_running`: only rows of running jobs, since no other may begin. `reasons`: changed reasons of
    shapes without all rows.
    """

    full: frozenset[int]
    heads: frozenset[int]
    reasons: tuple[ExplainShape, ...]
    of_running: frozenset[int] = frozenset()


def screen(
    snapshot: PoolSnapshot, plugins: Plugins, board: CapacityMatrix | None = None
) -> PrefilterResult:
    """Classify the shapes by their possible placement in this pass.

    `board`: the capacity matrix of the snapshot, which is only read.
    """
    policy = snapshot.policy
    board = board or CapacityMatrix(snapshot.cells, snapshot.shapes, policy.tokens)
    accounting = QuotaAccounting(snapshot)
    full, heads, reasons = set[int](), set[int](), list[ExplainShape]()
    of_running = set[int]()
    checked = [
        (shape, *_check_one(shape, snapshot, accounting, plugins)) for shape in snapshot.shapes
    ]
    misfits = _find_misfits(
        [shape for shape, deferred, _ in checked if not deferred], snapshot, board
    )
    for shape, deferred, is_final in checked:
        reason, may_be_made = misfits.get(shape.shape_id, (deferred, not is_final))
        # Gangs have their own reasons, a strict pool needs the first row, and rejections are by
        # group: all of these need all rows.
        is_counted_out = reason is not None and not is_final
        if not is_counted_out or policy.strict_fifo or (shape.coscheduled and may_be_made):
            full.add(shape.shape_id)
            continue
        if may_be_made and _may_make_room(shape, snapshot, deferred):
            heads.add(shape.shape_id)
        if (
            deferred is not None
            and _check_one(shape, snapshot, accounting, plugins, new_jobs=0)[0] is None
        ):
            of_running.add(shape.shape_id)
        if reason != shape.reason:
            reasons.append(ExplainShape(shape.shape_id, reason))
    return PrefilterResult(frozenset(full), frozenset(heads), tuple(reasons), frozenset(of_running))


def _find_misfits(
    shapes: Sequence[ShapeFacts], snapshot: PoolSnapshot, board: CapacityMatrix
) -> dict[int, tuple[Reason, bool]]:
    """Return for shapes without room the reason, and whether preemption could make room."""
    found = [
        shape
        for shape in shapes
        if not board.has_room(board.vector(shape.resources), board.usable(shape))
    ]
    reasons = explain_misfits(found, snapshot, board)
    return {shape.shape_id: reason for shape, reason in zip(found, reasons, strict=True)}


def outdated(
    snapshot: PoolSnapshot, screened: PrefilterResult, facts: PassFacts
) -> tuple[ExplainShape, ...]:
    """Return reasons of shapes that could be placed now, and that no other step clears.

    Shapes without startable tasks have no rows to read; gangs have reasons of their own.
    """
    read = set(facts.waiting.shape_ids)
    return tuple(
        ExplainShape(shape.shape_id, None)
        for shape in snapshot.shapes
        if shape.reason is not None
        and shape.shape_id in screened.full
        and (shape.coscheduled or (facts.is_whole and shape.shape_id not in read))
    )


def latest(prefiltered: Sequence[ExplainShape], plan: PlacementPlan) -> tuple[ExplainShape, ...]:
    """Return the changed reasons; for shapes that the pass explained, only its reasons.

    `prefiltered`: reasons from the prefilter, for one task of a new job; rows of running jobs may
    have another.
    """
    news = {item.shape_id: item for item in prefiltered if item.shape_id not in plan.explained}
    news |= {item.shape_id: item for item in plan.shapes}
    return tuple(news[shape_id] for shape_id in sorted(news))


def _may_make_room(shape: ShapeFacts, snapshot: PoolSnapshot, deferred: Reason | None) -> bool:
    """Return whether preemption or a reservation may serve tasks of the shape."""
    if deferred is not None and deferred["code"] == CONCURRENCY_LIMIT:
        return False
    policy = snapshot.policy
    evicts = policy.preemption and shape.band is not Band.BATCH
    return evicts or (policy.starvation_seconds is not None and deferred is None)


def _check_one(
    shape: ShapeFacts,
    snapshot: PoolSnapshot,
    accounting: QuotaAccounting,
    plugins: Plugins,
    *,
    new_jobs: int = 1,
) -> tuple[Reason | None, bool]:
    """Return the reason against one task, and whether it is final; `new_jobs`: 0 or 1."""
    request = Request(
        shape=shape,
        tasks=1,
        resources=shape.resources,
        quotas=accounting.quotas_of(shape),
        now=snapshot.now,
        startable_at=snapshot.now,
        new_jobs=new_jobs,
    )
    admitted, violations = check_all(plugins.validators, request)
    if admitted < 1 and violations:
        return explain_violations(violations), any(item.is_final for item in violations)
    tokens = accounting.tokens_for(shape)
    if tokens is not None and tokens < 1:
        return explain_tokens(accounting.missing_tokens(shape, 1)), False
    if shape.concurrency is not None and accounting.keys.room(shape.concurrency) == 0:
        return accounting.keys.explain(shape.concurrency, 1), False
    return None, False
