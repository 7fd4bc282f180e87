"""One pass over one pool: place waiting tasks, or record why they wait; pure.

Order: band, then gangs that have begun (their remaining members block the rest), then the pool's
sequencer. A shape without room is skipped. The minima of a gang are placed at once or not at all
(Volcano), further members one by one. Only more important bands may use reserved capacity
(nominations), and quota that is reserved in this pool or another.
"""

from collections.abc import Callable

import numpy as np

from controlplane.domain.placement.cycle.band_queue import BandQueue
from controlplane.domain.placement.cycle.gangs import GangPlacer
from controlplane.domain.placement.cycle.pass_state import Pass, Plugins
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.interfaces import Turn
from controlplane.domain.placement.model.snapshot import PassFacts, PoolSnapshot
from controlplane.domain.placement.plugins.sequencers.by_job import Fifo


def never() -> bool:
    """Return False, for a pass without a deadline."""
    return False


def place(
    snapshot: PoolSnapshot,
    facts: PassFacts,
    plugins: Plugins,
    *,
    limit: int,
    board: CapacityMatrix | None = None,
    is_late: Callable[[], bool] = never,
) -> PlacementPlan:
    """Return the plan for the pool, of at most `limit` tasks unless a gang needs more at once.

    `is_late`: checked before each turn; if it is true, the rest is left to the next pass. `board`:
    the capacity matrix of the snapshot, if there is one; placements are charged to it.
    """
    work = Pass(snapshot, facts, plugins, limit, board)
    gangs = GangPlacer(work)
    bands = work.rows.band
    for band in sorted(set(bands.tolist())):
        nominated = np.flatnonzero((bands == band) & work.rows.is_nominated).tolist()
        # Of equal bands, this pool's reservations come first: each pool places its own.
        work.usage.charge_reservations_elsewhere(band - 1)
        work.honour_nominations(nominated)
        gangs.honour_nominations(nominated)
        work.usage.charge_reservations_elsewhere(band)
        for is_first, sequencer in ((True, Fifo()), (False, plugins.sequencer)):
            rows = np.flatnonzero((bands == band) & (work.rows.is_first == is_first))
            if not len(rows):
                continue
            queue = BandQueue(
                work.rows,
                rows,
                work.shapes,
                work.left,
                work.usage,
                work.board,
                lambda: work.limit,
            )
            for turn in sequencer.turns(queue):
                if work.limit <= 0 or is_late():
                    return work.plan(is_cut=True)
                _take_turn(work, gangs, queue, turn)
                # Checked before the sequencer computes the next turn.
                if work.stopped_by is not None:
                    return work.plan()
                if work.limit <= 0 and queue.left.any():
                    return work.plan(is_cut=True)
    return work.plan()


def _take_turn(work: Pass, gangs: GangPlacer, queue: BandQueue, turn: Turn) -> None:
    rows = queue.place[turn.rows]
    shape = work.shapes[int(queue.shape[turn.rows[0]])]
    if shape.coscheduled:
        for row in rows.tolist():
            if work.limit <= 0:
                break
            queue.close_rows(gangs.place(row))
    elif shape.shape_id in work.closed:
        queue.close(shape.shape_id)
    else:
        work.place_rows(queue, shape, rows, turn.tasks)
    queue.left[turn.rows] = np.minimum(queue.left[turn.rows], work.left[rows])
