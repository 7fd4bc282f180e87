"""Take orders, keep attempts, and report their progress until the reports are acknowledged.

Single-threaded: `note` inputs, `sync` the journal, then `act`. Effects follow the fsync of the
entries that they depend on. Time is passed as `ClockReading`, so that simulations run the same
code.
"""

import uuid
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import structlog

from controlplane.contract.messages.orders import (
    GroupSpec,
    Orders,
    RegistrationResult,
    RunAttempt,
    StopAttempt,
    Sync,
)
from controlplane.contract.messages.reports import AttemptReport, Goodbye, Heartbeat, HeldAttempt
from controlplane.contract.states import Phase, TaskState
from controlplane.contract.wire import queues
from workers.agent.actions import DeferredActions
from workers.agent.exclusive import Exclusives
from workers.agent.final_report import judge_end, refusal
from workers.agent.inputs import CellInput, ClockReading, OrderMessage, ScanResult
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
from workers.cell_attempt import CellAttempt
from workers.config import CellConfig
from workers.drivers.base import Driver
from workers.exec.sessions import ExecStarter
from workers.guard.link import GuardLink
from workers.journal import CellJournal

log = structlog.get_logger(__name__)

_BLAME = "handling it crashed the cell"
# Messages with orders that are kept until the cell is registered; Sync repeats further ones.
MAX_EARLY = 100
# Orphans removed at once: attempts take precedence.
MAX_SWEPT = 200
# A process without attempts first removes orphans, whose resources it offers. It waits this long
# for an engine that does not answer, and then registers.
UNSEEN_SECONDS = 20.0
# Heartbeats are up to this share of their interval early: by the cell's name, and again to be sent
# together with those of other cells of the process.
_BEAT_SPREAD = 0.1
# A cell keeps attempts until the answer to a heartbeat acknowledges their reports. With more
# unacknowledged reports the next heartbeat is early: this long after the last one, if that one was
# answered.
MAX_UNACKNOWLEDGED = 64
EARLY_BEAT_SECONDS = 1.0


class Cell:
    """One cell: its orders, attempts, lease and reports."""

    def __init__(
        self,
        config: CellConfig,
        journal: CellJournal,
        driver: Driver,
        *,
        guard: GuardLink | None = None,
        execs: ExecStarter | None = None,
        draw_incarnation: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """Create a cell; without `guard`, exclusive orders are refused, without `execs` ignored."""
        self.config = config
        self.execs = execs
        self._log = log.bind(cell=config.name)
        self._draw_incarnation = draw_incarnation
        self.journal = journal
        self.driver = driver
        self.lease = Lease(self._log)
        self.exclusives = Exclusives(guard, self._log)
        self.outbox = Outbox(config, journal)
        self.actions = DeferredActions(driver, self._log)
        self.ended: list[CellAttempt] = []
        self.is_registered = False
        self.is_leaving = False
        self.is_changing_incarnation = False
        self.order_reader = OrderReader(
            name=config.name, key=config.key, incarnation=lambda: self.incarnation
        )
        self.next_beat = 0.0  # in seconds since boot
        # Spreads the heartbeats of cells that were answered together after an outage.
        self._beat_factor = 1.0 - _BEAT_SPREAD * (zlib.crc32(config.name.encode()) % 1000) / 1000
        self._heartbeat_seconds = 5.0
        self._last_beat = 0.0
        self._unanswered_beat: int | None = None
        self._register_seq = 0
        self._evacuating = False
        self._has_swept = False
        self._may_register_at = 0.0
        self._early_orders: list[Orders] = []
        self.reporter = Reporter(self.outbox.numbers, acked=0)
        self.progress = Progress(journal, lambda report: self.reporter.add(report))
        self.unfit = ""

    @property
    def name(self) -> str:
        """The cell's name."""
        return self.config.name

    @property
    def incarnation(self) -> str:
        """The current incarnation."""
        return self.journal.memory.incarnation

    @property
    def queue(self) -> str:
        """The queue from which this incarnation takes orders."""
        return queues.cell_queue(self.name, self.incarnation)

    def start(self, now: ClockReading) -> None:
        """Begin from the journal: adopt open attempts, report ended ones, and register."""
        memory = self.journal.memory
        if memory.is_blank:
            self._may_register_at = now.boot + UNSEEN_SECONDS
        self.journal.begin(memory.incarnation or self._draw_incarnation())
        self.reporter = Reporter(self.outbox.numbers, acked=memory.acked)
        for record in list(memory.attempts.values()):
            if record.end is not None:
                self._conclude(record, record.end)
            else:
                self._adopt(record, now)
        self.exclusives.begin(self.journal.open_attempts())
        self.next_beat = now.boot
        self.tick(now)

    def leave(self, now: ClockReading, *, expected_seconds: int) -> None:
        """Send Goodbye at the end of the process. Containers continue to run unless evacuated."""
        self.is_leaving = True
        self.progress.report_all()
        self.journal.leave()
        # Before the acceptance, messages must not be newer than the Register of a successor.
        send = self.outbox.send if self.journal.memory.claim is None else self.outbox.claim
        send(Goodbye(0 if self._evacuating else expected_seconds).body())

    def evacuate(self, *, force: bool = False) -> None:
        """Stop all attempts; their tasks are requeued for other cells without charge."""
        self._evacuating = True
        for record in self.journal.open_attempts():
            if not record.is_moving:  # also for a successor, if this process is killed
                self.journal.move(record)
            self.actions.stop(record.order_to_move(force=force))

    @property
    def is_empty(self) -> bool:
        """Whether all attempts have ended."""
        return not self.journal.open_attempts()

    def note(self, received: CellInput, now: ClockReading) -> None:
        """Handle one input. A message that cannot be read is dropped."""
        match received:
            case OrderMessage(text):
                self._take_order(text, now)
            case (
                BuildingEvent()
                | StageFailedEvent()
                | StartedEvent()
                | ReconciledEvent()
                | EndedEvent()
            ):
                self._take_event(received, now)
            case ScanResult():
                self._take_scan(received, now)

    def may_beat(self, now: ClockReading) -> bool:
        """Return whether a heartbeat is due soon enough to send it with those of other cells."""
        return now.boot >= self.next_beat - self._heartbeat_seconds * _BEAT_SPREAD

    def tick(self, now: ClockReading, *, early: bool = False) -> None:
        """Advance the time: register after the first scan until accepted, then send heartbeats.

        `early`: send a heartbeat before it is due, if it may be.
        """
        self.exclusives.tick()
        self.progress.report_due(now.boot)
        if now.boot < self.next_beat and not (early and self.may_beat(now)):
            return
        self.next_beat = now.boot + self._heartbeat_seconds * self._beat_factor
        self.journal.forget(now.wall)
        self._check_disk()
        self.exclusives.keep()
        if self.is_changing_incarnation:
            self._start_incarnation(now)
        if self.is_registered:
            held = tuple(HeldAttempt(item.uid, item.state) for item in self.journal.open_attempts())
            beat = Heartbeat(held, self.unfit, self.lease.clock_ahead)
            self._last_beat, self._unanswered_beat = now.boot, self.outbox.send(beat.body())
            self.lease.note_sent(self._unanswered_beat, now.boot)
        elif not self.is_changing_incarnation and self._may_register(now):
            self._register(now)

    @property
    def wakes_at(self) -> float:
        """When `tick` must be called next, in seconds since boot."""
        return min(self.next_beat, self.exclusives.wakes_at, self.progress.wakes_at)

    def act(self, *, flush: bool = True, is_safe: bool = True) -> None:
        """Carry out deferred actions, and, with `flush`, send reports.

        `is_safe`: the journal was synced. Otherwise only stops are carried out, and the rest waits.
        """
        self.exclusives.update_guard(self.lease)
        self.actions.carry_out(is_safe=is_safe)
        if flush and is_safe and self.is_registered and not self.is_changing_incarnation:
            for reports in self.reporter.flush(self.lease.clock_to_correct):
                self.outbox.send(reports.body())
            if self.reporter.in_flight > MAX_UNACKNOWLEDGED and self._unanswered_beat is None:
                self.next_beat = min(self.next_beat, self._last_beat + EARLY_BEAT_SECONDS)

    def take_outgoing(self) -> list[tuple[str, str]]:
        """Return and clear the messages to send, oldest first."""
        return self.outbox.take()

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
            self._begin_incarnation_change()
        elif answer.verdict == "accepted":
            self._log.info("cell_registered", why=answer.why)
            self.is_registered = True
            self.journal.accept()
            self._heartbeat_seconds = answer.heartbeat_seconds
            self.reporter.accept(answer.register_seq)
            self.lease.renew(
                answer.register_seq,
                lease_seconds=answer.lease_seconds,
                server_time=answer.server_time,
                now=now,
            )
            self.next_beat = now.boot
            early, self._early_orders = self._early_orders, []
            for orders in early:
                self._take_orders(orders, now)
        else:
            self._log.warning("registration_refused", why=answer.why)

    def _take_sync(self, sync: Sync, now: ClockReading) -> None:
        if not self.lease.has_sent(sync.heartbeat_seq):
            return
        if sync.draw_anew:
            # This Sync renews no lease: the cell's attempts may already run elsewhere.
            self._begin_incarnation_change()
            return
        self.lease.renew(
            sync.heartbeat_seq,
            lease_seconds=sync.lease_seconds,
            server_time=sync.server_time,
            now=now,
        )
        self._heartbeat_seconds = sync.heartbeat_seconds
        if sync.heartbeat_seq == self._unanswered_beat:
            self._unanswered_beat = None
        safe, again = self.reporter.acknowledge(sync.acked, sent_before=sync.heartbeat_seq)
        self._forget_acknowledged(safe)
        for reports in again:
            self.outbox.send(reports.body())
        self._take_orders(sync.orders, now)

    def _take_orders(self, orders: Orders, now: ClockReading) -> None:
        if orders.runs and self.lease.server_time(now.boot) is None:
            # Only a registered cell knows the server time, and whether these orders are late.
            self._early_orders = [*self._early_orders, replace(orders, stops=())][-MAX_EARLY:]
            orders = replace(orders, runs=())
        specs = {spec.id: spec for spec in orders.specs}
        for run in orders.runs:
            spec = specs.get(run.spec_id) or self.journal.memory.specs.get(run.spec_id)
            if spec is None:
                self._log.warning("order_without_spec", task=run.task_id, attempt=run.uid)
                continue
            self._take_run(run, spec, now)
        for stop in orders.stops:
            self._take_stop(stop, now)
        server_time = self.lease.server_time(now.boot)
        if self.execs is not None and server_time is not None and not self.is_leaving:
            for order in orders.execs:
                self.execs.begin(order, order.expires - server_time)

    def _take_run(self, run: RunAttempt, spec: GroupSpec, now: ClockReading) -> None:
        uid = run.uid
        if self.journal.find(uid) is not None:
            return
        known = self.journal.memory.done.get(uid)
        if known is not None:
            never = known.never_created
            self.reporter.add(refusal(uid, "ended here before", now.wall, never_created=never))
            return
        why = self._refusal_reason(run, spec, now)
        if why is not None:
            ids = CellAttempt(run, spec).ids
            self._log.warning("attempt_refused", **ids, why=why)
            never = self._has_swept  # otherwise an earlier container of it may still be there
            self.journal.finish(uid, run.start_before, never_created=never)
            self.reporter.add(refusal(uid, why, now.wall, never_created=never))
            return
        record = self.journal.take(run, spec)
        if spec.exclusive:
            self.exclusives.add(record, self.lease)
        self.actions.start(self._launch(record))

    def _refusal_reason(self, run: RunAttempt, spec: GroupSpec, now: ClockReading) -> str | None:
        """Return why an order is refused; None: it is accepted."""
        server_time = self.lease.server_time(now.boot)
        if self.is_leaving or self.is_changing_incarnation or self._evacuating:
            return "the cell is leaving"
        if self.unfit:
            return f"the cell takes no new work: {self.unfit}"
        if server_time is None or server_time > run.start_before:
            return "the order arrived too late"
        if spec.task_type not in offered_types(self.config):
            return f"tasks of type {spec.task_type} do not run here"
        if spec.exclusive:
            return self.exclusives.refusal_reason(spec, self.lease, now.boot)
        return None

    def _take_stop(self, stop: StopAttempt, now: ClockReading) -> None:
        record = self.journal.find(stop.uid)
        if record is None:
            # The stop came before the order: record the end, so that a later order is refused.
            known = self.journal.memory.done.get(stop.uid)
            never = self._has_swept if known is None else known.never_created
            if known is None:
                self.journal.finish(stop.uid, now.wall, never_created=never)
            self.reporter.add(
                AttemptReport(
                    stop.uid, 0, TaskState.KILLED, reason=STOPPED, gone=True, never_created=never
                )
            )
        elif record.end is None:
            if record.stop is None or (stop.force and not record.stop.force):
                self.journal.stop(stop)
            self.actions.stop(stop)

    def _take_event(self, event: DriverEvent, now: ClockReading) -> None:
        record = self.journal.find(event.uid)
        if record is None or record.end is not None:
            return
        match event:
            case BuildingEvent() | StageFailedEvent() | ReconciledEvent():
                self.progress.note(record, event, now)
            case StartedEvent():
                self.journal.start(record, event.at, event.container_id)
                record.addresses = event.addresses
                self.progress.report(record)
            case EndedEvent():
                is_fenced = self.exclusives.is_fenced(record)
                report = judge_end(record, event, is_fenced=is_fenced)
                if record.is_blamed and not record.stop and event.reason in (STOPPED, VANISHED):
                    phases = record.reportable_phases
                    report = refusal(record.uid, _BLAME, now.wall, phases=phases)
                self._finish(record, report)

    def _finish(self, record: CellAttempt, report: AttemptReport) -> None:
        self.journal.end(report)
        self._conclude(record, report)
        self.actions.remove(record.uid)

    def _conclude(self, record: CellAttempt, report: AttemptReport) -> None:
        self.exclusives.drop(record)
        self.ended.append(record)
        self.reporter.add(report)

    def _adopt(self, record: CellAttempt, now: ClockReading) -> None:
        if record.state is TaskState.ASSIGNED and record.stage < STAGES[Phase.CHECKING]:
            self.journal.crash(record)
            record.is_blamed = record.crashes > MAX_CRASHES
            if record.crashes > MAX_CRASHES + MAX_BLAMED:
                phases = record.reportable_phases
                self._finish(record, refusal(record.uid, _BLAME, now.wall, phases=phases))
                return
        launch, stop = self._launch(record), record.stop
        if stop is None and record.is_moving:
            stop = record.order_to_move()
        if record.is_blamed:  # its container, if any, must end before the report
            stop = StopAttempt(record.uid, _BLAME, 0.0, True)
        self.actions.adopt(launch)
        if stop is not None:
            self.actions.stop(stop)

    def _launch(self, record: CellAttempt) -> Launch:
        env = build_environment(record.run, record.spec, self.name)
        permit = partial(self.exclusives.permit, record.uid) if record.spec.exclusive else always
        return Launch(record.run, record.spec, env, permit, record.started_at)

    def _forget_acknowledged(self, safe: list[AttemptReport]) -> None:
        self.journal.acknowledge(self.reporter.acked)
        for uid, number in self.reporter.take_safe_phases():
            if (record := self.journal.find(uid)) is not None:
                record.drop_phases(number)
        for report in safe:
            found = self.journal.find(report.uid)
            # The acknowledged report may precede the end: only an acknowledged end counts.
            if found is not None and found.end is not None and report.gone:
                never = found.end.never_created
                self.journal.finish(report.uid, found.run.start_before, never_created=never)

    def _take_scan(self, scan: ScanResult, now: ClockReading) -> None:
        """Remove unknown containers and folders.

        A record is written before its container or folder, so without a record the attempt has
        ended. The first scan also removes attempts that had ended before this process began.
        """
        if self.unfit or self._evacuating:
            return  # a successor may have to inspect ended containers
        gone = [uid for uid in scan.containers if self._is_over(uid)]
        orphans = gone[:MAX_SWEPT]
        self._remove_orphans(orphans, now)
        self._has_swept = self._has_swept or len(gone) == len(orphans)
        if not self._register_seq:  # registration waited for the scan
            self.next_beat = now.boot
        folders = [uid for uid in scan.folders if self.journal.find(uid) is None][:MAX_SWEPT]
        for uid in (uid for uid in folders if uid not in orphans):
            self._log.info("orphaned_folder_removed", attempt=uid)
            self.actions.remove(uid)

    def _is_over(self, uid: str) -> bool:
        record = self.journal.find(uid)
        return record is None or (record.end is not None and not self._has_swept)

    def _remove_orphans(self, uids: Iterable[str], now: ClockReading) -> None:
        for uid in uids:
            self._log.warning("orphaned_container_removed", attempt=uid)
            # Refuses a late order for the same attempt, which was started already.
            if self.journal.find(uid) is None:
                self.journal.finish(uid, now.wall)
            self.actions.remove(uid)

    def _check_disk(self) -> None:
        unfit = "the disk of its folder is full" if self.journal.lacks_room() else ""
        if unfit != self.unfit:
            self._log.warning("cell_unfit" if unfit else "cell_fit", why=unfit)
        self.unfit = unfit

    def _may_register(self, now: ClockReading) -> bool:
        return self._has_swept or bool(self.unfit) or now.boot >= self._may_register_at

    def _register(self, now: ClockReading) -> None:
        body = make_register(self.config, self.journal.open_attempts()).body()
        self._register_seq = self.outbox.claim(body)
        self.lease.note_sent(self._register_seq, now.boot)

    def _begin_incarnation_change(self) -> None:
        if self.is_changing_incarnation:
            return
        self.is_changing_incarnation = True
        self.is_registered = False
        for record in self.journal.open_attempts():
            # Recorded, so that the end is not taken for the program's own.
            stop = StopAttempt(record.uid, "new incarnation", 0.0, True)
            self.journal.stop(stop)
            self.actions.stop(stop)

    def _start_incarnation(self, now: ClockReading) -> None:
        """Begin a new incarnation once all attempts of the old one have ended."""
        if not self.is_empty:
            return
        for reports in self.reporter.unacknowledged():
            self.outbox.send(reports.body())
        self.journal.begin(self._draw_incarnation())
        self.lease = Lease(self._log)
        self.outbox.begin()
        self.reporter = Reporter(self.outbox.numbers, acked=0)
        self.is_changing_incarnation = False
        self._log.info("incarnation_started", incarnation=self.incarnation)
