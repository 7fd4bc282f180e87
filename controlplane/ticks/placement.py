"""The placement tick: place pending tasks or write their reasons, at every wake and periodically.

The period is one second while tasks wait, otherwise ten seconds; one message serves all pools. A
pass is bounded work in short transactions; the next pass continues a backlog.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from celery import Task, shared_task
from django.conf import settings

from controlplane import clock
from controlplane.commands.placement.waiting import clear_nominations
from controlplane.commands.state.tick_runs import leave_mark, note_run
from controlplane.outbox.wakes import take_wake
from controlplane.queries.placement.snapshot import (
    find_pending,
    load_waiting_shapes,
)
from controlplane.queries.ticks import load_tick
from controlplane.ticks.pass_pause import PassPause
from controlplane.ticks.placement_pass import pass_pool_safely

NAME = "placement"
# Passes of one message; the next message continues.
MAX_PASSES = 50
IDLE_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Idleness:
    """Until when a process skips periodic ticks, in seconds of the `timer` of `tick`."""

    until: float = 0.0


class PlacementTask(Task):
    """The Celery task, one instance per process."""

    def __init__(self) -> None:
        self.idleness = Idleness()
        self.pause = PassPause()


@shared_task(name="controlplane.ticks.placement", base=PlacementTask, bind=True)
def placement(self: PlacementTask, woken: bool = False) -> None:
    """Run the tick; beat and wakes send this task."""
    tick(self.idleness, woken=woken, timer=time.monotonic, pause=self.pause)


def tick(
    idleness: Idleness,
    *,
    woken: bool,
    timer: Callable[[], float],
    pause: PassPause | None = None,
) -> None:
    """Run placement; skip periodic ticks for ten seconds after a run without waiting tasks."""
    if not woken and timer() < idleness.until:
        return
    take_wake(NAME)
    if run(woken=woken, pause=pause):
        idleness.until = 0.0
    elif not woken:
        idleness.until = timer() + IDLE_SECONDS


def run(*, woken: bool = True, pause: PassPause | None = None) -> bool:
    """Place tasks in up to 50 passes; return whether any task waits or waited.

    `pause` separates passes, except those that continue a backlog; None: no pauses.
    """
    started_at = clock.now()
    pending = find_pending(NAME, started_at)
    if not pending.placeable:
        if not woken:
            # Every batch of reports may send a needless wake: only periodic ticks are recorded.
            _note(started_at, placed=0)
        return pending.any
    if not woken and _is_recent(started_at):
        return True
    # A mark that is older than the snapshot of the pass: it may cause a needless pass at most.
    placed, uncovered, mark = 0, frozenset[int](), pending.mark
    for _ in range(MAX_PASSES):
        if pause is not None and not uncovered:
            pause.wait()
        outcome = run_pass() if pause is None else pause.measure(run_pass)
        if outcome is None:
            leave_mark(NAME)
            return True
        placed += outcome[0]
        uncovered = outcome[1]
        is_stuck = uncovered and not outcome[0]
        mark, before = load_tick(NAME).mark, mark
        if is_stuck or (not uncovered and mark == before):
            break
    _note(started_at, placed=placed, uncovered=uncovered)
    return True


def run_pass() -> tuple[int, frozenset[int]] | None:
    """Run one pass over the due pools; return the placed tasks, and the pools not fully considered.

    Return None while another process has the turn.
    """
    now = clock.now()
    due = load_waiting_shapes(now)
    if any(waiting.is_room_kept for waiting in due):
        clear_nominations(now=now)
    placed, uncovered = 0, set[int]()
    for waiting in due:
        done = pass_pool_safely(waiting, now=now)
        if done is None:
            return None
        placed += done[0]
        # Rows that changed since the snapshot are skipped; the next tick retries them.
        if not done[1]:
            uncovered.add(waiting.pool_id)
    return placed, frozenset(uncovered)


def _is_recent(now: datetime) -> bool:
    finished_at = load_tick(NAME).finished_at
    half = timedelta(seconds=settings.CELLRUN.placement_interval_seconds / 2)
    return finished_at is not None and abs(now - finished_at) < half


def _note(started_at: datetime, *, placed: int, uncovered: frozenset[int] = frozenset()) -> None:
    note_run(
        NAME,
        started_at=started_at,
        finished_at=clock.now(),
        counts={"placed": placed},
        covered_at=started_at,
        uncovered=uncovered,
    )
    if placed:
        log.info("placed", tasks=placed)
