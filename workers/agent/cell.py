"""Take orders, keep attempts, and report their progress until the reports are acknowledged.

Single-threaded: `note` events, `sync` the journal, then `act`. Effects follow the fsync of what
they depend on. Time comes in with `ClockReading`, so a simulation drives the same code.
"""

import uuid
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import structlog

from controlplane.contract.messages.orders import Orders, RegistrationResult, StopAttempt, Sync
from controlplane.contract.messages.reports import AttemptReport, Goodbye, Heartbeat, HeldAttempt
from controlplane.contract.states import Phase, TaskState
from controlplane.contract.wire import queues
from workers.agent.actions import DeferredActions
from workers.agent.attempts import AttemptEntry, AttemptTable
from workers.agent.exclusive import Exclusives
from workers.agent.final_report import judge_end, refusal
from workers.agent.inputs import ClockReading, Happening, OrderMessage, ScanResult
from workers.agent.lease import Lease
from workers.agent.orders import OrderReader
from workers.agent.outbox import Outbox
from workers.agent.progress import MAX_BLAMED, MAX_CRASHES, STAGES, Progress
from workers.agent.registration import make_register, offered_types
from workers.agent.reporting import Reporter
from workers.attempt.environment import build_environment
from workers.attempt.events import (
    BuildingEvent,
    DriverEvent,
    EndedEvent,
    Launch,
    ReconciledEvent,
    StageFailedEvent,
    StartedEvent,
    always,
)
from workers.attempt.outcome import STOPPED, VANISHED
from workers.config import CellConfig
from workers.drivers.base import Driver
from workers.guard.link import GuardLink
from workers.journal import CellJournal, JournaledAttempt

log = structlog.get_logger(__name__)

_BLAME = "handling it crashed the cell"
# Messages with orders that are kept until the cell is registered; Sync repeats what comes on top.
MAX_EARLY = 100
# At most so many orphans are removed at once: attempts come first.
MAX_SWEPT = 200
# A process that knows of no attempt first clears away what others left: their room is what it
# offers. It waits so long for an engine that does not answer, on which nothing starts anyway.
UNSEEN_SECONDS = 20.0
# Up to this part sooner than it must a cell beats, each by its name.
_SPREAD = 0.1
# How long a uid stays known after its order cannot arrive any more.
KNOWN_SECONDS = 24 * 3600.0


class Cell:
    """One cell."""

    def __init__(
        self,
        config: CellConfig,
        journal: CellJournal,
        driver: Driver,
        *,
        guard: GuardLink | None = None,
        draw_incarnation: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """`guard`: without one, exclusive orders are refused."""
        self.config = config
        self._log = log.bind(cell=config.name)
        self._draw_incarnation = draw_incarnation
        self.journal = journal
        self.driver = driver
        self.lease = Lease(self._log)
        self.books = AttemptTable()
        self.exclusives = Exclusives(guard, self._log)
        self.outbox = Outbox(config, journal)
        self.deeds = DeferredActions(driver, self._log)
        self.ended: list[AttemptEntry] = []
        self.is_registered = False
        self.is_leaving = False
        self.is_drawing_anew = False
        self.order_reader = OrderReader(
            name=config.name, key=config.key, incarnation=lambda: self.incarnation
        )
        self._next_beat = 0.0
        # Cells that were answered together, after an outage, must not beat together ever after.
        self._pace = 1.0 - _SPREAD * (zlib.crc32(config.name.encode()) % 1000) / 1000
        self._heartbeat_seconds = 5.0
        self._register_seq = 0
        self._evacuating = False
        self._has_swept = False
        self._may_register_at = 0.0
        self._early: list[Orders] = []
        self.reporter = Reporter(self.outbox.numbers, acked=0)
        self.progress = Progress(journal, lambda: self.books, lambda said: self.reporter.say(said))
        self.unfit = ""

    @property
    def name(self) -> str:
        """The cell's name."""
        return self.config.name

    @property
    def incarnation(self) -> str:
        """The present incarnation."""
        return self.journal.memory.incarnation

    @property
    def queue(self) -> str:
        """Where this incarnation takes its orders."""
        return queues.cell_queue(self.name, self.incarnation)

    # ------------------------------------------------------------------ starting and ending

    def start(self, now: ClockReading) -> None:
        """Read the journal, adopt what runs, end unknown containers, ask to be registered."""
        memory = self.journal.memory
        if memory.is_blank:
            self._may_register_at = now.boot + UNSEEN_SECONDS
        self.journal.begin(memory.incarnation or self._draw_incarnation())
        self.reporter = Reporter(self.outbox.numbers, acked=memory.acked)
        for uid, item in list(memory.attempts.items()):
            spec = memory.specs.get(item.run.spec_id)
            if spec is None:
                self._log.error("spec_not_in_journal", task=item.run.task_id, attempt=uid)
                continue
            book = self.books.open(item.run, spec)
            book.stop, book.is_moving = item.stop, item.is_moving
            book.recall(item.phases, item.phase_count)
            if item.end is not None:
                self._end(book, item.end)
                continue
            if item.started_at is not None:
                book.move(TaskState.RUNNING, started_at=item.started_at)
                book.container_id = item.container_id
            self._adopt(book, item, now)
        self.exclusives.begin(self.books.running())
        self._next_beat = now.boot
        self.tick(now)

    def leave(self, now: ClockReading, *, expected_seconds: int) -> None:
        """The process ends. With evacuation everything is stopped first; else containers run on."""
        self.is_leaving = True
        self.progress.report_all()
        self.journal.leave()
        # An unanswered process sends nothing newer than the Register of its successor.
        say = self.outbox.send if self.journal.memory.claim is None else self.outbox.claim
        say(Goodbye(0 if self._evacuating else expected_seconds).body())

    def evacuate(self, *, force: bool = False) -> None:
        """Stop everything; what is stopped goes back to wait for another cell, free of charge."""
        self._evacuating = True
        for book in self.books.running():
            if not book.is_moving:  # a successor is to know as well, should this process be killed
                book.is_moving = True
                self.journal.move(book.uid)
            self.deeds.stop(book.order_to_move(force=force))

    @property
    def is_empty(self) -> bool:
        """Whether no attempt is under way here."""
        return not self.books.running()

    # ------------------------------------------------------------------ what happens

    def note(self, happening: Happening, now: ClockReading) -> None:
        """Take note of one thing. A message that cannot be read is dropped and stops nothing."""
        match happening:
            case OrderMessage(text):
                self._take_order(text, now)
            case (
                BuildingEvent()
                | StageFailedEvent()
                | StartedEvent()
                | ReconciledEvent()
                | EndedEvent()
            ):
                self._take_event(happening, now)
            case ScanResult():
                self._take_sighting(happening, now)

    def tick(self, now: ClockReading) -> None:
        """Advance the time: scan first, register until that is answered, then send heartbeats."""
        self.exclusives.tick()
        self.progress.report_due(now.boot)
        if now.boot < self._next_beat:
            return
        self._next_beat = now.boot + self._heartbeat_seconds * self._pace
        self.journal.forget(now.wall)
        self._look_whether_fit()
        self.exclusives.keep()
        if self.is_drawing_anew:
            self._draw_anew(now)
        if self.is_registered:
            held = tuple(HeldAttempt(book.uid, book.state) for book in self.books.running())
            beat = Heartbeat(held, self.unfit, self.lease.clock_ahead)
            self.lease.note_sent(self.outbox.send(beat.body()), now.boot)
        elif not self.is_drawing_anew and self._may_register(now):
            self._register(now)

    @property
    def wakes_at(self) -> float:
        """When `tick` has something to do, in seconds since boot."""
        return min(self._next_beat, self.exclusives.wakes_at, self.progress.wakes_at)

    def act(self, *, flush: bool = True, is_safe: bool = True) -> None:
        """Do what is safe on disk now, and, with `flush`, report it.

        `is_safe`: the journal was synced. Otherwise only stops are carried out, and the rest waits.
        """
        self.exclusives.tell(self.lease)
        self.deeds.carry_out(is_safe=is_safe)
        if flush and is_safe and self.is_registered and not self.is_drawing_anew:
            for reports in self.reporter.flush(self.lease.clock_to_correct):
                self.outbox.send(reports.body())

    def take_outgoing(self) -> list[tuple[str, str]]:
        """The messages to send, oldest first."""
        return self.outbox.take()

    # ------------------------------------------------------------------ orders

    def _take_order(self, text: str, now: ClockReading) -> None:
        match self.order_reader.read(text):
            case RegistrationResult() as answer:
                self._take_registered(answer, now)
            case Sync() as sync:
                self._take_sync(sync, now)
            case Orders() as orders:
                self._take_orders(orders, now)

    def _take_registered(self, answer: RegistrationResult, now: ClockReading) -> None:
        if self.is_registered or answer.register_seq != self._register_seq:
            return
        if answer.verdict == "draw_anew":
            self._log.warning("incarnation_rejected", why=answer.why)
            self._begin_drawing()
        elif answer.verdict == "accepted":
            self._log.info("cell_registered", why=answer.why)
            self.is_registered = True
            self.journal.accepted()
            self._heartbeat_seconds = answer.heartbeat_seconds
            self.reporter.accept(answer.register_seq)
            self.lease.renew(
                answer.register_seq,
                lease_seconds=answer.lease_seconds,
                server_time=answer.server_time,
                now=now,
            )
            self._next_beat = now.boot
            early, self._early = self._early, []
            for orders in early:
                self._take_orders(orders, now)
        else:
            self._log.warning("registration_refused", why=answer.why)

    def _take_sync(self, sync: Sync, now: ClockReading) -> None:
        if not self.lease.has_sent(sync.heartbeat_seq):
            return
        if sync.draw_anew:
            # No word of a lease: what the cell has may have been given to others.
            self._begin_drawing()
            return
        self.lease.renew(
            sync.heartbeat_seq,
            lease_seconds=sync.lease_seconds,
            server_time=sync.server_time,
            now=now,
        )
        self._heartbeat_seconds = sync.heartbeat_seconds
        safe, again = self.reporter.hear(sync.acked, sent_before=sync.heartbeat_seq)
        self._forget_safe(safe)
        for reports in again:
            self.outbox.send(reports.body())
        self._take_orders(sync.orders, now)

    def _take_orders(self, orders: Orders, now: ClockReading) -> None:
        if orders.runs and self.lease.server_time(now.boot) is None:
            # They waited for this process; once it is registered it knows whether they are late.
            self._early = [*self._early, replace(orders, stops=())][-MAX_EARLY:]
            orders = replace(orders, runs=())
        specs = {spec.id: spec for spec in orders.specs}
        for run in orders.runs:
            spec = specs.get(run.spec_id) or self.journal.memory.specs.get(run.spec_id)
            if spec is None:
                self._log.warning("order_without_spec", task=run.task_id, attempt=run.uid)
                continue
            self._take_run(self.books.prepare(run, spec), now)
        for stop in orders.stops:
            self._take_stop(stop, now)

    def _take_run(self, book: AttemptEntry, now: ClockReading) -> None:
        uid = book.uid
        if self.books.find(uid) is not None:
            return
        known = self.journal.memory.done.get(uid)
        if known is not None:
            never = known.never_created
            self.reporter.say(refusal(uid, "ended here before", now.wall, never_created=never))
            return
        why = self._why_not(book, now)
        if why is not None:
            self._log.warning("attempt_refused", **book.ids, why=why)
            never = self._was_never_here(uid)
            self._remember_ended(uid, book.run.start_before, never_created=never)
            self.reporter.say(refusal(uid, why, now.wall, never_created=never))
            return
        self.books.add(book)
        if book.spec.exclusive:
            self.exclusives.add(book, self.lease)
        self.journal.take(book.run, book.spec)
        self.deeds.start(self._launch(book))

    def _why_not(self, book: AttemptEntry, now: ClockReading) -> str | None:
        """Why an order is refused; None: it is taken."""
        server_time = self.lease.server_time(now.boot)
        if self.is_leaving or self.is_drawing_anew or self._evacuating:
            return "the cell is leaving"
        if self.unfit:
            return f"the cell takes no new work: {self.unfit}"
        if server_time is None or server_time > book.run.start_before:
            return "the order arrived too late"
        if book.spec.task_type not in offered_types(self.config):
            return f"tasks of type {book.spec.task_type} do not run here"
        if book.spec.exclusive:
            return self.exclusives.why_not(book, self.lease, now.boot)
        return None

    def _take_stop(self, stop: StopAttempt, now: ClockReading) -> None:
        book = self.books.find(stop.uid)
        if book is None:
            # Stop before run: it is known as ended from now on, and a later order is refused.
            known = self.journal.memory.done.get(stop.uid)
            never = self._was_never_here(stop.uid) if known is None else known.never_created
            if known is None:
                self._remember_ended(stop.uid, now.wall, never_created=never)
            self.reporter.say(
                AttemptReport(
                    stop.uid, 0, TaskState.KILLED, reason=STOPPED, gone=True, never_created=never
                )
            )
        elif book.end is None:
            if book.stop is None or (stop.force and not book.stop.force):
                book.stop = stop
                self.journal.stop(stop)
            self.deeds.stop(stop)

    # ------------------------------------------------------------------ attempts

    def _take_event(self, event: DriverEvent, now: ClockReading) -> None:
        book = self.books.find(event.uid)
        if book is None or book.end is not None:
            return
        match event:
            case BuildingEvent() | StageFailedEvent() | ReconciledEvent():
                self.progress.note(book, event, now)
            case StartedEvent():
                self.journal.start(event.uid, event.at, event.container_id)
                book.container_id, book.addresses = event.container_id, event.addresses
                book.move(TaskState.RUNNING, started_at=event.at)
                self.progress.report(book)
            case EndedEvent():
                is_struck = self.exclusives.is_struck(book)
                report = judge_end(book, event, is_struck=is_struck)
                if book.is_blamed and not book.stop and event.reason in (STOPPED, VANISHED):
                    report = refusal(book.uid, _BLAME, now.wall, phases=book.phases)
                self._finish(book, report)

    def _finish(self, book: AttemptEntry, report: AttemptReport) -> None:
        self.journal.end(report)
        self._end(book, report)
        self.deeds.remove(book.uid)

    def _end(self, book: AttemptEntry, report: AttemptReport) -> None:
        self.books.end(book, report)
        self.exclusives.drop(book)
        self.ended.append(book)
        self.reporter.say(report)

    def _adopt(self, book: AttemptEntry, item: JournaledAttempt, now: ClockReading) -> None:
        if book.state is TaskState.ASSIGNED and item.stage < STAGES[Phase.CHECKING]:
            self.journal.crash(book.uid)
            book.is_blamed = item.crashes > MAX_CRASHES
            if item.crashes > MAX_CRASHES + MAX_BLAMED:
                self._finish(book, refusal(book.uid, _BLAME, now.wall, phases=book.phases))
                return
        launch, stop = self._launch(book), book.stop
        if stop is None and book.is_moving:
            stop = book.order_to_move()
        if book.is_blamed:  # what may still run of it ends before the report
            stop = StopAttempt(book.uid, _BLAME, 0.0, True)
        self.deeds.adopt(launch)
        if stop is not None:
            self.deeds.stop(stop)

    def _launch(self, book: AttemptEntry) -> Launch:
        env = build_environment(book.run, book.spec, self.name)
        permit = partial(self.exclusives.permit, book.uid) if book.spec.exclusive else always
        return Launch(book.run, book.spec, env, permit, book.started_at)

    def _forget_safe(self, safe: list[AttemptReport]) -> None:
        self.journal.hear(self.reporter.acked)
        for uid, number in self.reporter.take_safe_phases():
            self.progress.forget(uid, number)
        for report in safe:
            book = self.books.find(report.uid)
            # Its end may be known here and not be reported yet: only a reported end counts.
            if book is not None and book.end is not None and report.gone:
                self._remember_ended(
                    report.uid, book.run.start_before, never_created=book.end.never_created
                )
                self.books.close(report.uid)

    def _was_never_here(self, uid: str) -> bool:
        """Return whether a uid without a record is unknown to the engine, too, after a scan."""
        return self._has_swept and uid not in self.journal.memory.attempts

    def _remember_ended(
        self, uid: str, start_before: float, *, never_created: bool = False
    ) -> None:
        self.journal.finish(uid, start_before + KNOWN_SECONDS, never_created=never_created)

    def _take_sighting(self, seen: ScanResult, now: ClockReading) -> None:
        """Remove unknown containers and folders.

        A scanned container or folder had its record before: without a record it has ended. The
        first scan also removes what had ended when this process began.
        """
        if self.unfit or self._evacuating:
            return  # a successor may have to inspect what has ended
        gone = [uid for uid in seen.containers if self._is_over(uid)]
        strangers = gone[:MAX_SWEPT]
        self._remove_strangers(strangers, now)
        self._has_swept = self._has_swept or len(gone) == len(strangers)
        if not self._register_seq:  # it waited for this
            self._next_beat = now.boot
        folders = [uid for uid in seen.folders if self.books.find(uid) is None][:MAX_SWEPT]
        for uid in (uid for uid in folders if uid not in strangers):
            self._log.info("orphaned_folder_removed", attempt=uid)
            self.deeds.remove(uid)

    def _is_over(self, uid: str) -> bool:
        book = self.books.find(uid)
        return book is None or (book.end is not None and not self._has_swept)

    def _remove_strangers(self, uids: Iterable[str], now: ClockReading) -> None:
        for uid in uids:
            self._log.warning("orphaned_container_removed", attempt=uid)
            # An order for it may yet come, again: it was started once, and that was enough.
            if self.books.find(uid) is None:
                self._remember_ended(uid, now.wall)
            self.deeds.remove(uid)

    def _look_whether_fit(self) -> None:
        unfit = "the disk of its folder is full" if self.journal.lacks_room() else ""
        if unfit != self.unfit:
            self._log.warning("cell_unfit" if unfit else "cell_fit", why=unfit)
        self.unfit = unfit

    # ------------------------------------------------------------------ identity

    def _may_register(self, now: ClockReading) -> bool:
        return self._has_swept or bool(self.unfit) or now.boot >= self._may_register_at

    def _register(self, now: ClockReading) -> None:
        body = make_register(self.config, self.books.running()).body()
        self._register_seq = self.outbox.claim(body)
        self.lease.note_sent(self._register_seq, now.boot)

    def _begin_drawing(self) -> None:
        if self.is_drawing_anew:
            return
        self.is_drawing_anew = True
        self.is_registered = False
        for book in self.books.running():
            # Noted, so that its end is never taken for the program's own.
            book.stop = StopAttempt(book.uid, "drawn anew", 0.0, True)
            self.journal.stop(book.stop)
            self.deeds.stop(book.stop)

    def _draw_anew(self, now: ClockReading) -> None:
        """Begin a new incarnation once nothing of the old one runs."""
        if not self.is_empty:
            return
        for reports in self.reporter.unheard():  # the answer for this incarnation has arrived
            self.outbox.send(reports.body())
        self.journal.begin(self._draw_incarnation())
        self.books, self.lease = AttemptTable(), Lease(self._log)
        self.outbox.begin()
        self.reporter = Reporter(self.outbox.numbers, acked=0)
        self.is_drawing_anew = False
        self._log.info("incarnation_started", incarnation=self.incarnation)
