"""Prefilter, the first step of a pass: find the shapes that could be placed at all.

There are few shapes, however many tasks wait. A shape that fits nowhere, or exceeds its quota, gets
its reason at once, and its rows are not read.
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
    Reason,
    explain_misfits,
    explain_tokens,
    explain_violations,
)
from controlplane.domain.state.effects import ExplainShape
from controlplane.domain.state.states import Band


@dataclass(frozen=True, slots=True)
class PrefilterResult:
    """Shapes by what is read of them: all rows, or only the first ones, for whom room may be made.

    `of_running`: only rows of jobs that run already, since no other may begin. `reasons`: of those
    of which not all rows are read; where they changed.
    """

    full: frozenset[int]
    heads: frozenset[int]
    reasons: tuple[ExplainShape, ...]
    of_running: frozenset[int] = frozenset()


def screen(
    snapshot: PoolSnapshot, plugins: Plugins, board: CapacityMatrix | None = None
) -> PrefilterResult:
    """Sort the shapes by what can become of them in this pass.

    `board`: of the snapshot, to be used for `place` afterwards, too; it is only read here.
    """
    policy = snapshot.policy
    board = board or CapacityMatrix(snapshot.cells, snapshot.shapes, policy.tokens)
    ledger = QuotaAccounting(snapshot)
    full, heads, reasons = set[int](), set[int](), list[ExplainShape]()
    of_running = set[int]()
    asked = [(shape, *_ask(shape, snapshot, ledger, plugins)) for shape in snapshot.shapes]
    misfits = _find_misfits(
        [shape for shape, deferred, _ in asked if not deferred], snapshot, board
    )
    for shape, deferred, is_final in asked:
        reason, may_be_made = misfits.get(shape.shape_id, (deferred, not is_final))
        # A gang says for itself why it waits, a strict pool asks who comes first, and what is
        # rejected is rejected group by group.
        is_counted_out = reason is not None and not is_final
        if not is_counted_out or policy.strict_fifo or (shape.coscheduled and may_be_made):
            full.add(shape.shape_id)
            continue
        if may_be_made and _may_make_room(shape, snapshot, deferred):
            heads.add(shape.shape_id)
        if deferred is not None and _ask(shape, snapshot, ledger, plugins, new_jobs=0)[0] is None:
            of_running.add(shape.shape_id)
        if reason != shape.reason:
            reasons.append(ExplainShape(shape.shape_id, reason))
    return PrefilterResult(frozenset(full), frozenset(heads), tuple(reasons), frozenset(of_running))


def _find_misfits(
    shapes: Sequence[ShapeFacts], snapshot: PoolSnapshot, board: CapacityMatrix
) -> dict[int, tuple[Reason, bool]]:
    """Of the shapes for which no cell has room: why, and whether some could be made."""
    found = [
        shape
        for shape in shapes
        if not board.has_room(board.vector(shape.resources), board.usable(shape))
    ]
    reasons = explain_misfits(found, snapshot, board)
    return {shape.shape_id: told for shape, told in zip(found, reasons, strict=True)}


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


def latest(told: Sequence[ExplainShape], plan: PlacementPlan) -> tuple[ExplainShape, ...]:
    """Return what changes for the shapes: of those that the pass read rows of, its word alone
    counts.

    `told`: what was said without their rows. It speaks of one task of a new job; rows that are read
    all the same, as those of jobs that run, may wait for something else.
    """
    news = {item.shape_id: item for item in told if item.shape_id not in plan.explained}
    news |= {item.shape_id: item for item in plan.shapes}
    return tuple(news[shape_id] for shape_id in sorted(news))


def _may_make_room(shape: ShapeFacts, snapshot: PoolSnapshot, deferred: Reason | None) -> bool:
    """Return whether preemption or a reservation may serve tasks of the shape."""
    policy = snapshot.policy
    evicts = policy.preemption and shape.band is not Band.BATCH
    return evicts or (policy.starvation_seconds is not None and deferred is None)


def _ask(
    shape: ShapeFacts,
    snapshot: PoolSnapshot,
    ledger: QuotaAccounting,
    plugins: Plugins,
    *,
    new_jobs: int = 1,
) -> tuple[Reason | None, bool]:
    """Return what is against one task of the shape, and whether for good; `new_jobs` 1: of a new
    job.
    """
    request = Request(
        shape=shape,
        tasks=1,
        resources=shape.resources,
        quotas=ledger.quotas_of(shape),
        now=snapshot.now,
        startable_at=snapshot.now,
        new_jobs=new_jobs,
    )
    admitted, violations = check_all(plugins.validators, request)
    if admitted < 1 and violations:
        return explain_violations(violations), any(item.is_final for item in violations)
    tokens = ledger.tokens_for(shape)
    if tokens is not None and tokens < 1:
        return explain_tokens(ledger.missing_tokens(shape, 1)), False
    return None, False
