"""The first step of a pass: which of the shapes that wait may be placed at all.

There are few shapes, however many tasks wait. What fits nowhere, or is over its quota, has its
reason at once, and its rows are not even read.
"""

from dataclasses import dataclass

from controlplane.domain.effects import ExplainShape
from controlplane.domain.placement.board import Board
from controlplane.domain.placement.explain import (
    Reason,
    explain_misfit,
    explain_tokens,
    explain_violations,
)
from controlplane.domain.placement.interfaces import Request
from controlplane.domain.placement.ledger import Ledger
from controlplane.domain.placement.one_pass import Plugins, check_all
from controlplane.domain.placement.snapshot import PassFacts, PoolSnapshot, ShapeFacts
from controlplane.domain.states import Band


@dataclass(frozen=True, slots=True)
class Screened:
    """Shapes by what is read of them: all rows, or only the first ones, for whom room may be made.

    `of_running`: only rows of jobs that run already, since no other may begin. `reasons`: of those
    of which not all rows are read; where they changed.
    """

    full: frozenset[int]
    heads: frozenset[int]
    reasons: tuple[ExplainShape, ...]
    of_running: frozenset[int] = frozenset()


def screen(snapshot: PoolSnapshot, plugins: Plugins, board: Board | None = None) -> Screened:
    """Sort the shapes by what can become of them in this pass.

    `board`: of the snapshot, to be used for `place` afterwards, too; it is only read here.
    """
    policy = snapshot.policy
    board = board or Board(snapshot.cells, snapshot.shapes, policy.tokens)
    ledger = Ledger(snapshot)
    full, heads, reasons = set[int](), set[int](), list[ExplainShape]()
    of_running = set[int]()
    for shape in snapshot.shapes:
        deferred, is_final = _ask(shape, snapshot, ledger, plugins)
        reason, may_be_made = deferred, not is_final
        if reason is None:
            usable, request = board.usable(shape), board.vector(shape.resources)
            if not board.has_room(request, usable):
                reason = explain_misfit(shape, snapshot, board, usable)
                may_be_made = board.could_ever_fit(request, usable)
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
    return Screened(frozenset(full), frozenset(heads), tuple(reasons), frozenset(of_running))


def outdated(
    snapshot: PoolSnapshot, screened: Screened, facts: PassFacts
) -> tuple[ExplainShape, ...]:
    """What was said of shapes that could be placed now, but of which nothing may start yet.

    No row of them is read, so nobody else takes it back.
    """
    if not facts.is_whole:
        return ()
    read = set(facts.waiting.shape_ids)
    return tuple(
        ExplainShape(shape.shape_id, None)
        for shape in snapshot.shapes
        if shape.reason is not None
        and shape.shape_id in screened.full
        and shape.shape_id not in read
    )


def _may_make_room(shape: ShapeFacts, snapshot: PoolSnapshot, deferred: Reason | None) -> bool:
    """Whether others may have to leave for tasks of the shape, or a place is kept for them."""
    policy = snapshot.policy
    evicts = policy.preemption and shape.band is not Band.BATCH
    return evicts or (policy.starvation_seconds is not None and deferred is None)


def _ask(
    shape: ShapeFacts,
    snapshot: PoolSnapshot,
    ledger: Ledger,
    plugins: Plugins,
    *,
    new_jobs: int = 1,
) -> tuple[Reason | None, bool]:
    """What is against one task of the shape, and whether for good; `new_jobs` 1: of a new job."""
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
