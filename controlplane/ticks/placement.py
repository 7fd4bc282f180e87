"""The placement tick: what waits is placed, or gets its reason; at every wake, and by the clock.

By the clock it looks every second while something waits, else every ten seconds; one message serves
all pools. A pass is bounded work, in short transactions; a backlog goes on in the next pass, so it
can never starve itself.
"""

import time
from datetime import datetime, timedelta

import structlog
from celery import shared_task
from django.conf import settings
from django.db import OperationalError

from controlplane import clock
from controlplane.commands.placement.reject import reject
from controlplane.commands.placement.waiting import clear_nominations, explain
from controlplane.commands.state.apply import raise_alerts
from controlplane.commands.state.tick_runs import leave_mark, note_coverage, note_run, take_wake
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.state.effects import RaiseAlert
from controlplane.queries.placement.snapshot import (
    WaitingShapes,
    is_anything_pending,
    is_anything_placeable,
    load_waiting_shapes,
)
from controlplane.queries.ticks import load_tick
from controlplane.ticks.make_room import make_room_safely
from controlplane.ticks.placement_pass import pass_pool
from controlplane.ticks.tick_lock import in_turn

NAME = "placement"
# One message works through at most so many passes; the next message goes on.
MAX_PASSES = 50
IDLE_SECONDS = 10.0

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
    if not is_anything_placeable(started_at):
        if not woken:
            # A wake for nothing, one for each batch of reports, writes nothing: the clock's tick
            # does.
            _note(started_at, placed=0)
        return is_anything_pending()
    if not woken and _is_recent(started_at):
        return True
    placed, uncovered = 0, frozenset[int]()
    for _ in range(MAX_PASSES):
        mark = load_tick(NAME).mark
        outcome = run_pass()
        if outcome is None:
            leave_mark(NAME)
            return True
        placed += outcome[0]
        uncovered = outcome[1]
        is_stuck = uncovered and not outcome[0]
        if is_stuck or (not uncovered and load_tick(NAME).mark == mark):
            break
    _note(started_at, placed=placed, uncovered=uncovered)
    return True


def run_pass() -> tuple[int, frozenset[int]] | None:
    """One pass over the due pools: tasks placed, and the pools that were not wholly looked at.

    None: not our turn.
    """
    now = clock.now()
    due = load_waiting_shapes(now)
    if any(waiting.is_room_kept for waiting in due):
        clear_nominations(now=now)
    placed, uncovered = 0, set[int]()
    for waiting in due:
        done = _pass_safely(waiting, now)
        if done is None:
            return None
        placed += done[0]
        # What could not be written as planned was overtaken: the next tick looks at it.
        if not done[1]:
            uncovered.add(waiting.pool_id)
    return placed, frozenset(uncovered)


def _pass_safely(waiting: WaitingShapes, now: datetime) -> tuple[int, bool] | None:
    """One pool whose pass fails does not hold up the others; what waits in it was not looked at.

    Placing, ending and evicting lock other jobs each, so each is a transaction of its own. Reasons
    come last: nobody waits for words.
    """
    try:
        outcome = in_turn(lambda: pass_pool(waiting, now=now))
        if outcome is None:
            return None
        if outcome.plan.rejected:
            reject(outcome.plan.rejected, now=clock.now())
        if outcome.plan.unplaced:
            make_room_safely(outcome.snapshot, outcome.plan, outcome.facts)
        if outcome.shapes or outcome.plan.groups:
            run_in_transaction(lambda: explain(outcome.shapes, outcome.plan.groups))
    except OperationalError:
        raise
    except Exception as error:
        log.exception("pool_skipped", pool=waiting.pool_id)
        alert = RaiseAlert("pool_skipped", f"pool {waiting.pool_id}", repr(error)[:1000])
        raise_alerts([alert], now=now)
        return 0, False
    return outcome.placed, outcome.covered


def _is_recent(now: datetime) -> bool:
    finished_at = load_tick(NAME).finished_at
    half = timedelta(seconds=settings.CELLRUN.placement_interval_seconds / 2)
    return finished_at is not None and abs(now - finished_at) < half


def _note(started_at: datetime, *, placed: int, uncovered: frozenset[int] = frozenset()) -> None:
    note_coverage(uncovered)
    note_run(
        NAME,
        started_at=started_at,
        finished_at=clock.now(),
        counts={"placed": placed},
        covered_at=started_at,
    )
    if placed:
        log.info("placed", tasks=placed)
