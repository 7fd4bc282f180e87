"""The loop of a cell process: one thread passes inputs to its cells, syncs journals, and acts.

A process usually hosts one cell; a fleet hosts many, for scale tests. Celery's thread queues
orders, and the threads of drivers queue events.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog

from controlplane.contract.messages.reports import MAX_REPORTS
from workers import clock
from workers.agent.cell import Cell
from workers.agent.inputs import CellInput, ClockReading
from workers.attempt.events import EndedEvent, StartedEvent
from workers.attempt.runtime import EngineAway
from workers.cell_attempt import CellAttempt
from workers.journal import JournalFile
from workers.service.bus import BrokerClient

log = structlog.get_logger(__name__)

# Delay of reports, to coalesce several into one message.
COALESCE_SECONDS = 0.02
# Minimum interval of flushes, so that a busy cell sends few messages, and reports most short
# attempts in one. (A message takes 1 ms of the control plane's time.)
PACE_SECONDS = 0.1
# Minimum interval of rounds, each of which takes an fsync.
ROUND_SECONDS = 0.004
# An attempt is announced to Flower after running for this long.
ANNOUNCE_SECONDS = 1.0
# Heartbeats of other cells that are sent early with one that is due.
MAX_EARLY_BEATS = 100
# The longest sleep between two rounds.
_MAX_SLEEP_SECONDS = 1.0
_MAX_ROUND = 2_000
# How long a restart waits for a loop that hangs.
RESTART_SECONDS = 5.0
# The longest grace period in an evacuation: supervisors kill a cell after 60 s.
EVACUATION_SECONDS = 50.0
# How long the evacuation waits for killed attempts after the grace period.
_EVACUATION_MARGIN_SECONDS = 5.0
# Interval of checks whether the evacuated containers are removed.
_REMOVAL_POLL_SECONDS = 0.05

Incoming = tuple[str, CellInput]


class AttemptObserver(Protocol):
    """Receives changes of attempts."""

    def attempt_running(self, record: CellAttempt, *, received: float) -> None:
        """Receive that the attempt runs."""

    def attempt_ended(self, record: CellAttempt) -> None:
        """Receive that the attempt has ended."""


class ScheduledComponent(Protocol):
    """A component with timed events, in wall seconds, and without a thread."""

    def advance(self, now: float) -> int:
        """Handle all events due at `now`; return their number."""

    def next_due(self) -> float | None:
        """Return the time of the next event; None: there is none."""


def read_moment() -> ClockReading:
    """Read both clocks of this machine."""
    return ClockReading(clock.wall_seconds(), clock.boot_seconds())


class CellHost:
    """Runs cells in its own thread."""

    def __init__(
        self, journals: JournalFile, bus: BrokerClient, schedule: ScheduledComponent | None = None
    ) -> None:
        self._journals = journals
        self._bus = bus
        self._schedule = schedule
        self._events: AttemptObserver | None = None
        self._cells: dict[str, Cell] = {}
        self._incoming: queue.SimpleQueue[Incoming | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)
        self._first_news: float | None = None
        self._flushed_at = float("-inf")
        self._round_at = float("-inf")
        self._announced: set[str] = set()
        self._next_announcement = 0.0
        self._incarnations: dict[str, str] = {}
        self._on_new_incarnation: Callable[[], None] = restart_process
        self._is_restarting = False
        self._evacuate_for: float | None = None
        self._expected_seconds = 0

    def add(self, cell: Cell) -> None:
        """Add a cell, before the start."""
        self._cells[cell.name] = cell

    def watch(self, events: AttemptObserver) -> None:
        """Send changes of attempts to `events`; call it before the start."""
        self._events = events

    def put(self, cell: str, received: CellInput) -> None:
        """Queue an input for the cell of that name. Thread-safe."""
        self._incoming.put((cell, received))

    def prepare(self) -> None:
        """Start the cells, so that their incarnations and queues are known."""
        now = read_moment()
        for cell in self._cells.values():
            cell.start(now)
            self._incarnations[cell.name] = cell.incarnation
        self._journals.sync()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, expected_seconds: int, evacuate: bool) -> None:
        """Send Goodbye and end the thread; with `evacuate`, first stop all attempts and wait."""
        self._evacuate_for = self._longest_grace() if evacuate else None
        self._expected_seconds = 0 if evacuate else expected_seconds
        self._stopping.set()
        self._incoming.put(None)
        self._thread.join()
        for cell in self._cells.values():
            if cell.execs is not None:
                cell.execs.close()
            cell.driver.close()

    def restart(self) -> None:
        """Restart the process after an orderly end of the loop, unless it hangs.

        Called from another thread.
        """
        self._is_restarting = True
        self._incoming.put(None)
        self._thread.join(RESTART_SECONDS)
        self._on_new_incarnation()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self._is_restarting:
                self._round(self._sleep_seconds())
            if self._stopping.is_set():
                self._leave()
                return
            for cell in self._cells.values():
                cell.progress.report_all()  # writes phase changes to the journal
                cell.journal.leave()  # so that no attempt is blamed
            self._journals.sync()
        except BaseException:
            # Without its loop the process is useless: end it, so that a supervisor restarts it.
            log.exception("cell_loop_failed")
            os._exit(70)

    def _round(self, timeout: float) -> None:
        if self._schedule is not None:
            self._schedule.advance(clock.wall_seconds())
        batch = self._drain(timeout)
        now = read_moment()
        for name, received in without_superseded(batch):
            if name in self._cells:
                self._cells[name].note(received, now)
        advance_cells(self._cells.values(), now)
        is_safe = self._journals.sync()
        flush = is_safe and self._is_flush_due(now)
        messages: list[tuple[str, str]] = []
        for cell in self._cells.values():
            cell.act(flush=flush, is_safe=is_safe)
            outgoing = cell.take_outgoing()
            # With a full disk a cell continues heartbeats, except under an incarnation that is not
            # in the journal yet.
            if is_safe or self._incarnations[cell.name] == cell.incarnation:
                messages += outgoing
        if messages:
            self._bus.push(messages)
        self._notify_observer(now)
        if is_safe and any(
            self._incarnations[cell.name] != cell.incarnation for cell in self._cells.values()
        ):
            self._on_new_incarnation()

    def _drain(self, timeout: float) -> list[Incoming]:
        batch: list[Incoming] = []
        try:
            item = (
                self._incoming.get(timeout=timeout) if timeout > 0 else self._incoming.get_nowait()
            )
            self._limit_rate()
            while True:
                if item is not None:
                    batch.append(item)
                if len(batch) >= _MAX_ROUND:
                    break
                item = self._incoming.get_nowait()
        except queue.Empty:
            pass
        return batch

    def _limit_rate(self) -> None:
        """Wait until ROUND_SECONDS after the last round."""
        rest = self._round_at + ROUND_SECONDS - clock.boot_seconds()
        if rest > 0:
            self._stopping.wait(rest)
        self._round_at = clock.boot_seconds()

    def _sleep_seconds(self) -> float:
        now = clock.boot_seconds()
        seconds = (
            min((cell.wakes_at for cell in self._cells.values()), default=now + _MAX_SLEEP_SECONDS)
            - now
        )
        if self._first_news is not None:
            seconds = min(seconds, self._flush_at(self._first_news) - now)
        due = None if self._schedule is None else self._schedule.next_due()
        if due is not None:
            seconds = min(seconds, due - clock.wall_seconds())
        return min(max(seconds, 0.0), _MAX_SLEEP_SECONDS)

    def _flush_at(self, first_news: float) -> float:
        return max(first_news + COALESCE_SECONDS, self._flushed_at + PACE_SECONDS)

    def _is_flush_due(self, now: ClockReading) -> bool:
        if not any(cell.reporter.has_news for cell in self._cells.values()):
            self._first_news = None
            return False
        if self._first_news is None:
            self._first_news = now.boot
        waited = now.boot >= self._flush_at(self._first_news)
        many = any(cell.reporter.news >= MAX_REPORTS for cell in self._cells.values())
        if waited or many:
            self._first_news = None
            self._flushed_at = now.boot
            return True
        return False

    def _notify_observer(self, now: ClockReading) -> None:
        if self._events is None:
            for cell in self._cells.values():
                cell.ended.clear()
            return
        for cell in self._cells.values():
            for record in cell.ended:
                self._events.attempt_ended(record)
                self._announced.discard(record.uid)
            cell.ended.clear()
        if now.boot >= self._next_announcement:
            self._next_announcement = now.boot + ANNOUNCE_SECONDS
            self._announce(now)

    def _announce(self, now: ClockReading) -> None:
        assert self._events is not None
        for cell in self._cells.values():
            for record in cell.journal.open_attempts():
                since = now.wall if record.started_at is None else record.started_at
                if now.wall - since > ANNOUNCE_SECONDS and record.uid not in self._announced:
                    self._announced.add(record.uid)
                    self._events.attempt_running(record, received=since)

    def _longest_grace(self) -> float:
        graces = [
            record.spec.stop_grace_seconds
            for cell in self._cells.values()
            for record in cell.journal.open_attempts()
        ]
        return min(max(graces, default=0.0), EVACUATION_SECONDS)

    def _leave(self) -> None:
        if self._evacuate_for is not None:
            self._evacuate(clock.boot_seconds() + self._evacuate_for)
        for cell in self._cells.values():
            cell.leave(read_moment(), expected_seconds=self._expected_seconds)
        self._journals.sync()
        self._bus.push(self._final_messages(list(self._cells.values())))

    def _evacuate(self, until: float) -> None:
        """Stop all attempts and wait for their ends; kill those that have not ended at `until`."""
        deadline = until + _EVACUATION_MARGIN_SECONDS
        is_forced = False
        for cell in self._cells.values():
            cell.evacuate()
        while not all(cell.is_empty for cell in self._cells.values()):
            if clock.boot_seconds() > deadline:
                log.warning("evacuation_incomplete")
                break
            if not is_forced and clock.boot_seconds() > until:
                is_forced = True
                for cell in self._cells.values():
                    cell.evacuate(force=True)
            self._round(min(self._sleep_seconds(), 0.1))
        self._wait_until_removed(deadline)

    def _wait_until_removed(self, deadline: float) -> None:
        """Wait for the removals, which drivers do in threads that end with this process."""
        for cell in self._cells.values():
            try:
                while any(cell.driver.find()) and clock.boot_seconds() < deadline:
                    self._round(_REMOVAL_POLL_SECONDS)
            except EngineAway as error:
                log.warning("evacuated_not_removed", error=str(error))

    @staticmethod
    def _final_messages(cells: Sequence[Cell]) -> list[tuple[str, str]]:
        for cell in cells:
            cell.act()
        return [message for cell in cells for message in cell.take_outgoing()]


def advance_cells(cells: Collection[Cell], now: ClockReading) -> None:
    """Advance the time of cells; send their heartbeats together.

    The control plane receives and answers them in fewer batches. A large fleet sends several
    groups, because the reports of other cells wait for the end of a group.
    """
    is_beating = any(now.boot >= cell.next_beat for cell in cells)
    early = MAX_EARLY_BEATS if is_beating else 0
    for cell in cells:
        is_early = early > 0 and now.boot < cell.next_beat and cell.may_beat(now)
        early -= is_early
        cell.tick(now, early=is_early)


def without_superseded(batch: list[Incoming]) -> list[Incoming]:
    """Return the inputs without starts of attempts whose end is also in the batch."""
    ended = {
        (name, item.uid)
        for name, item in batch
        if isinstance(item, EndedEvent) and item.started_at is not None
    }
    if not ended:
        return batch

    def is_superseded(name: str, item: CellInput) -> bool:
        if not isinstance(item, StartedEvent) or item.addresses is not None:
            return False
        return (name, item.uid) in ended

    return [(name, item) for name, item in batch if not is_superseded(name, item)]


def restart_process() -> None:
    """Replace this process by a new start of the same command, with the same pid."""
    log.warning("process_restarting")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
