"""The placement tick: what waits is placed, or gets its reason; at every wake, and by the clock.

By the clock it looks every second while something waits, else every ten seconds; one message serves
all pools. A pass is one transaction of bounded work; a backlog goes on in the next pass, so it can
never starve itself.
"""

import time
import zlib
from datetime import datetime, timedelta

import structlog
from celery import shared_task
from django.conf import settings
from django.db import transaction

from controlplane import clock
from controlplane.commands.effects import explain_groups
from controlplane.commands.placement import carry_out
from controlplane.commands.ticks import leave_mark, note_run, take_wake
from controlplane.domain.effects import ExplainGroup
from controlplane.domain.placement.place import place
from controlplane.queries.placement import (
    find_due_pools,
    is_anything_pending,
    load_placement_snapshot,
)
from controlplane.queries.ticks import load_tick, try_lock

NAME = "placement"
# Tasks placed in one transaction: 50 orders a message with 100 cells, and half a second of locks.
TASKS_PER_PASS = 5_000
# One message works through at most so many passes; the next message goes on.
MAX_PASSES = 50
IDLE_SECONDS = 10.0
_LOCK = zlib.crc32(b"cellrun placement")

log = structlog.get_logger(__name__)
_idle_until = 0.0


@shared_task(name="controlplane.ticks.placement")
def placement(woken: bool = False) -> None:
    """What beat and wakes send."""
    global _idle_until
    if not woken and time.monotonic() < _idle_until:
        return
    take_wake(NAME)
    if run(woken=woken):
        _idle_until = 0.0
    elif not woken:
        _idle_until = time.monotonic() + IDLE_SECONDS


def run(*, woken: bool = True) -> bool:
    """Place what can be placed; whether anything waits or waited."""
    started_at = clock.now()
    if not find_due_pools(started_at):
        if not woken:
            # A wake for nothing, one for each batch of reports, writes nothing: the clock's tick
            # does.
            _note(started_at, placed=0, covered=True)
        return is_anything_pending()
    if not woken and _is_recent(started_at):
        return True
    placed, covered = 0, False
    for _ in range(MAX_PASSES):
        mark = load_tick(NAME).mark
        outcome = run_pass()
        if outcome is None:
            leave_mark(NAME)
            return True
        placed += outcome[0]
        covered = outcome[1]
        is_stuck = not covered and not outcome[0]
        if is_stuck or (covered and load_tick(NAME).mark == mark):
            break
    _note(started_at, placed=placed, covered=covered)
    return True


def run_pass() -> tuple[int, bool] | None:
    """One pass over the due pools: tasks placed, and whether all was seen. None: not our turn."""
    placed, covered = 0, True
    reasons: list[ExplainGroup] = []
    with transaction.atomic():
        if settings.CELLRUN.advisory_locks and not try_lock(_LOCK):
            return None
        now = clock.now()
        for pool_id in find_due_pools(now):
            snapshot = load_placement_snapshot(pool_id, now=now)
            plan = place(snapshot, limit=TASKS_PER_PASS)
            # The snapshot may show a release that is younger than `now`; what is placed is younger.
            written_at = clock.now()
            placed += carry_out(plan, now=written_at, start_seconds=settings.CELLRUN.start_seconds)
            reasons += plan.explanations
            # What could not be written as planned was overtaken: the next tick looks at it.
            covered &= plan.complete and snapshot.is_whole
        # Last, since no lock may be waited for once rows of groups are held.
        explain_groups(reasons)
    return placed, covered


def _is_recent(now: datetime) -> bool:
    finished_at = load_tick(NAME).finished_at
    half = timedelta(seconds=settings.CELLRUN.placement_interval_seconds / 2)
    return finished_at is not None and now - finished_at < half


def _note(started_at: datetime, *, placed: int, covered: bool) -> None:
    note_run(
        NAME,
        started_at=started_at,
        finished_at=clock.now(),
        counts={"placed": placed},
        covered_at=started_at if covered else None,
    )
    if placed:
        log.info("placed", tasks=placed)
