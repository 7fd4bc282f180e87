"""The cell: takes orders, keeps its attempts, and tells what became of them until it is heard.

Single-threaded and driven from outside: `note` each thing that happened, then `sync` the journal,
then `act`. Nothing is done or said before what it rests on is safe on disk, and one fsync serves
everything that was noted together. Time comes in with `Moment`; a simulation drives the same
code.
"""

import logging
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from controlplane.contract import broker, envelope, keys, queues
from controlplane.contract.fields import Malformed
from controlplane.contract.orders import (
    Orders,
    Registered,
    StopAttempt,
    Sync,
    read_order,
)
from controlplane.contract.reports import (
    AttemptReport,
    Goodbye,
    Heartbeat,
    Held,
)
from controlplane.contract.states import TaskState
from workers.attempt.engine import EngineAway
from workers.attempt.events import Building, DriverEvent, Ended, Launch, Started, always
from workers.attempt.outcome import STOPPED
from workers.books import Book, Books
from workers.config import CellConfig
from workers.drivers.base import Driver
from workers.environment import build_environment
from workers.guard.exclusive import Exclusives
from workers.guard.link import Link
from workers.journal import Journal
from workers.lease import Lease
from workers.offer import TASK_TYPES, make_register
from workers.reporting import Numbers, Reporter
from workers.verdicts import judge_end, refusal

log = logging.getLogger(__name__)

# A process that was killed so often while it handled an attempt, before that got anywhere, blames
# it.
MAX_CRASHES = 2
# Messages with orders that are kept until the cell is registered; Sync repeats what comes on top.
MAX_EARLY = 100
# Up to this part sooner than it must a cell beats, each by its name.
_SPREAD = 0.1
# How long a uid stays known after its order cannot arrive any more.
KNOWN_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Moment:
    """Now: `wall` in seconds since 1970, `boot` in seconds since boot (sleep included)."""

    wall: float
    boot: float


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """The text of an order as it came from the broker."""

    text: str


Happening = OrderMessage | DriverEvent


def _draw_incarnation() -> str:
    return uuid.uuid4().hex


class Cell:
    """One cell. `outgoing`: messages as (queue, message), taken by whoever drives it."""

    def __init__(
        self,
        config: CellConfig,
        journal: Journal,
        driver: Driver,
        *,
        guard: Link | None = None,
        draw_incarnation: Callable[[], str] = _draw_incarnation,
    ) -> None:
        """`guard`: without one, exclusive orders are refused."""
        self.config = config
        self._draw_incarnation = draw_incarnation
        self.journal = journal
        self.driver = driver
        self.lease = Lease()
        self.books = Books()
        self.exclusives = Exclusives(guard)
        self.outgoing: list[tuple[str, str]] = []
        self.ended: list[Book] = []
        self.is_registered = False
        self.is_leaving = False
        self.is_drawing_anew = False
        self._actions: list[Callable[[], None]] = []
        self._orders_key = keys.mac_key(config.key, keys.TO_CELL)
        self._reports_key = keys.mac_key(config.key, keys.TO_CONTROL)
        self._next_beat = 0.0
        # Cells that were answered together, after an outage, must not beat together ever after.
        self._pace = 1.0 - _SPREAD * (zlib.crc32(config.name.encode()) % 1000) / 1000
        self._heartbeat_seconds = 5.0
        self._register_seq = 0
        self._evacuating = False
        self._has_swept = False
        self._early: list[Orders] = []
        self._count_from(0)

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

    def start(self, now: Moment) -> None:
        """Read the journal, adopt what runs, end what nobody knows, ask to be registered."""
        memory = self.journal.memory
        self.journal.begin(memory.incarnation or self._draw_incarnation())
        self._count_from(memory.acked)
        for uid, item in list(memory.attempts.items()):
            spec = memory.specs.get(item.run.spec_id)
            if spec is None:
                log.error("spec of attempt %s is not in the journal", uid)
                continue
            book = self.books.open(item.run, spec)
            book.stop = item.stop
            if item.end is not None:
                self._end(book, item.end)
                continue
            if item.started_at is not None:
                book.move(TaskState.RUNNING, started_at=item.started_at)
                book.container_id = item.container_id
            self._adopt(book, item.crashes, now)
        self.exclusives.begin(self.books.running())
        self._next_beat = now.boot
        self.tick(now)

    def leave(self, now: Moment, *, expected_seconds: int) -> None:
        """The process ends. With evacuation everything is stopped first; else containers run on."""
        self.is_leaving = True
        self._send(Goodbye(0 if self._evacuating else expected_seconds).body())

    def evacuate(self) -> None:
        """Stop everything; what is stopped goes back to wait for another cell, free of charge."""
        self._evacuating = True
        for book in self.books.running():
            stop = StopAttempt(book.uid, "drained", book.spec.stop_grace_seconds)
            self._actions.append(self._stop_action(stop))

    @property
    def is_empty(self) -> bool:
        """Whether no attempt is under way here."""
        return not self.books.running()

    # ------------------------------------------------------------------ what happens

    def note(self, happening: Happening, now: Moment) -> None:
        """Take note of one thing. A message that cannot be read is dropped and stops nothing."""
        match happening:
            case OrderMessage(text):
                try:
                    self._take_order(text, now)
                except Malformed as error:
                    log.warning("order dropped: %s", error)
            case Building() | Started() | Ended():
                self._take_event(happening, now)

    def tick(self, now: Moment) -> None:
        """Let time pass: register again until it is answered, then beat."""
        self.exclusives.tick()
        if now.boot < self._next_beat:
            return
        self._next_beat = now.boot + self._heartbeat_seconds * self._pace
        self.journal.forget(now.wall)
        self.exclusives.keep()
        if not self._has_swept:
            self._has_swept = self._sweep(now)
        if self.is_drawing_anew:
            self._draw_anew(now)
        if self.is_registered:
            held = tuple(Held(book.uid, book.state) for book in self.books.running())
            self.lease.note_sent(self._send(Heartbeat(held).body()), now.boot)
        elif not self.is_drawing_anew:
            self._register(now)

    @property
    def wakes_at(self) -> float:
        """When `tick` has something to do, in seconds since boot."""
        return min(self._next_beat, self.exclusives.wakes_at)

    def act(self, *, flush: bool = True) -> None:
        """Do what is safe on disk now, and, with `flush`, say it."""
        self.exclusives.tell(self.lease)
        actions, self._actions = self._actions, []
        for action in actions:
            try:
                action()
            except Exception:  # a driver's fault must not keep the others from being served
                log.exception("an action of the driver failed")
        if flush and self.is_registered and not self.is_drawing_anew:
            for reports in self.reporter.flush():
                self._send(reports.body())

    def take_outgoing(self) -> list[tuple[str, str]]:
        """The messages to send, oldest first."""
        messages, self.outgoing = self.outgoing, []
        return messages

    # ------------------------------------------------------------------ orders

    def _take_order(self, text: str, now: Moment) -> None:
        message = envelope.parse(text)
        message.check(self._orders_key)
        if message.cell != self.name or message.incarnation != self.incarnation:
            raise Malformed(f"an order for {message.cell} {message.incarnation}")
        order = read_order(message.body())
        match order:
            case Registered():
                self._take_registered(order, now)
            case Sync():
                self._take_sync(order, now)
            case Orders():
                self._take_orders(order, now)

    def _take_registered(self, answer: Registered, now: Moment) -> None:
        if self.is_registered or answer.register_seq != self._register_seq:
            return
        if answer.verdict == "draw_anew":
            log.warning("cell %s draws a new incarnation: %s", self.name, answer.why)
            self._begin_drawing()
        elif answer.verdict == "accepted":
            log.info("cell %s is registered: %s", self.name, answer.why)
            self.is_registered = True
            self.journal.accepted()
            self._heartbeat_seconds = answer.heartbeat_seconds
            self.reporter.accept(answer.register_seq)
            self.lease.renew(
                answer.register_seq,
                lease_seconds=answer.lease_seconds,
                server_time=answer.server_time,
                boot=now.boot,
            )
            self._next_beat = now.boot
            early, self._early = self._early, []
            for orders in early:
                self._take_orders(orders, now)
        else:
            log.warning("cell %s is refused: %s", self.name, answer.why)

    def _take_sync(self, sync: Sync, now: Moment) -> None:
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
            boot=now.boot,
        )
        self._heartbeat_seconds = sync.heartbeat_seconds
        safe, again = self.reporter.hear(sync.acked, sent_before=sync.heartbeat_seq)
        self._forget_safe(safe)
        for reports in again:
            self._send(reports.body())
        self._take_orders(sync.orders, now)

    def _take_orders(self, orders: Orders, now: Moment) -> None:
        if orders.runs and self.lease.server_time(now.boot) is None:
            # They waited for this process; once it is registered it knows whether they are late.
            self._early = [*self._early, replace(orders, stops=())][-MAX_EARLY:]
            orders = replace(orders, runs=())
        specs = {spec.id: spec for spec in orders.specs}
        for run in orders.runs:
            spec = specs.get(run.spec_id) or self.journal.memory.specs.get(run.spec_id)
            if spec is None:
                log.warning("order %s lacks its spec", run.uid)
                continue
            self._take_run(self.books.prepare(run, spec), now)
        for stop in orders.stops:
            self._take_stop(stop, now)

    def _take_run(self, book: Book, now: Moment) -> None:
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
            log.warning("attempt %s is refused: %s", uid, why)
            never = self._was_never_here(uid)
            self._remember_ended(uid, book.run.start_before, never_created=never)
            self.reporter.say(refusal(uid, why, now.wall, never_created=never))
            return
        self.books.add(book)
        if book.spec.exclusive:
            self.exclusives.add(book, self.lease)
        self.journal.take(book.run, book.spec)
        launch = self._launch(book)
        self._actions.append(lambda: self.driver.start(launch))

    def _why_not(self, book: Book, now: Moment) -> str | None:
        """Why an order is refused; None: it is taken."""
        server_time = self.lease.server_time(now.boot)
        if self.is_leaving or self.is_drawing_anew or self._evacuating:
            return "the cell is leaving"
        if server_time is None or server_time > book.run.start_before:
            return "the order arrived too late"
        if book.spec.task_type not in TASK_TYPES[self.config.driver]:
            return f"tasks of type {book.spec.task_type} do not run here"
        if book.spec.exclusive:
            return self.exclusives.why_not(book, self.lease, now.boot)
        return None

    def _take_stop(self, stop: StopAttempt, now: Moment) -> None:
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
            self._actions.append(self._stop_action(stop))

    def _stop_action(self, stop: StopAttempt) -> Callable[[], None]:
        return lambda: self.driver.stop(
            stop.uid, grace_seconds=stop.grace_seconds, force=stop.force
        )

    # ------------------------------------------------------------------ attempts

    def _take_event(self, event: DriverEvent, now: Moment) -> None:
        book = self.books.find(event.uid)
        if book is None or book.end is not None:
            return
        match event:
            case Building():
                book.phase, book.progress = event.phase, event.progress
                book.move(TaskState.BUILDING)
            case Started():
                self.journal.start(event.uid, event.at, event.container_id)
                book.container_id, book.addresses = event.container_id, event.addresses
                book.move(TaskState.RUNNING, started_at=event.at)
            case Ended():
                is_struck = self.exclusives.is_struck(book)
                report = judge_end(book, event, evacuating=self._evacuating, is_struck=is_struck)
                self.journal.end(report)
                self._end(book, report)
                uid = book.uid
                self._actions.append(lambda: self.driver.remove(uid))
                return
        self.reporter.say(book.report())

    def _end(self, book: Book, report: AttemptReport) -> None:
        self.books.end(book, report)
        self.exclusives.drop(book)
        self.ended.append(book)
        self.reporter.say(report)

    def _adopt(self, book: Book, crashes: int, now: Moment) -> None:
        if book.state is TaskState.ASSIGNED:
            self.journal.crash(book.uid)
            if crashes + 1 > MAX_CRASHES:
                report = refusal(book.uid, "handling it crashed the cell", now.wall)
                self.journal.end(report)
                self._end(book, report)
                uid = book.uid
                self._actions.append(lambda: self.driver.stop(uid, grace_seconds=0.0, force=True))
                self._actions.append(lambda: self.driver.remove(uid))
                return
        launch, stop = self._launch(book), book.stop
        self._actions.append(lambda: self.driver.adopt(launch))
        if stop is not None:
            self._actions.append(self._stop_action(stop))

    def _launch(self, book: Book) -> Launch:
        env = build_environment(book.run, book.spec, self.name)
        permit = partial(self.exclusives.permit, book.uid) if book.spec.exclusive else always
        return Launch(book.run, book.spec, env, permit, book.started_at)

    def _forget_safe(self, safe: list[AttemptReport]) -> None:
        self.journal.hear(self.reporter.acked)
        for report in safe:
            book = self.books.find(report.uid)
            # Its end may be known here and not be said yet: only a report of the end counts.
            if book is not None and book.end is not None and report.gone:
                self._remember_ended(
                    report.uid, book.run.start_before, never_created=book.end.never_created
                )
                self.books.close(report.uid)

    def _was_never_here(self, uid: str) -> bool:
        """Whether a uid without a book is unknown, on the engine too."""
        return self._has_swept and uid not in self.journal.memory.attempts

    def _remember_ended(
        self, uid: str, start_before: float, *, never_created: bool = False
    ) -> None:
        self.journal.finish(uid, start_before + KNOWN_SECONDS, never_created=never_created)

    def _sweep(self, now: Moment) -> bool:
        """Remove containers of this cell that nobody knows. False if the engine is away."""
        try:
            found = list(self.driver.find())
        except EngineAway as error:
            log.warning("the engine does not answer: %s", error)
            return False
        for item in found:
            book = self.books.find(item.uid)
            if book is None or book.end is not None:
                log.warning("container of unknown attempt %s is removed", item.uid)
                # An order for it may yet come, again: it was started once, and that was enough.
                if book is None:
                    self._remember_ended(item.uid, now.wall)
                self._actions.append(partial(self.driver.remove, item.uid))
        return True

    # ------------------------------------------------------------------ identity

    def _register(self, now: Moment) -> None:
        body = make_register(self.config, self.books.running()).body()
        memory = self.journal.memory
        number = self.numbers.draw_claim(memory.claim or 0, memory.starts)
        self._register_seq = self._send(body, number)
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
            self._actions.append(self._stop_action(book.stop))

    def _draw_anew(self, now: Moment) -> None:
        """Begin a new incarnation once nothing of the old one runs."""
        if not self.is_empty:
            return
        for reports in self.reporter.unheard():  # who waits for a word of this incarnation has it
            self._send(reports.body())
        self.journal.begin(self._draw_incarnation())
        self.books, self.lease = Books(), Lease()
        self._count_from(0)
        self.is_drawing_anew = False
        log.info("cell %s begins incarnation %s", self.name, self.incarnation)

    def _count_from(self, acked: int) -> None:
        self.numbers = Numbers(lambda: self.journal.memory.written)
        self.reporter = Reporter(self.numbers, acked=acked)

    def _send(self, body: dict[str, object], number: int | None = None) -> int:
        """Seal a message and put it in line; its number."""
        seq = self.numbers.draw() if number is None else number
        text = envelope.seal(
            self._reports_key, cell=self.name, incarnation=self.incarnation, seq=seq, body=body
        )
        queue = queues.inbox_queue(self.name)
        self.outgoing.append((queue, broker.plain_message(queue, text)))
        return seq
