"""A driver that runs each attempt through the pipeline in its own thread: docker and process.

Plain process tasks use a shorter path while nothing fails (workers.drivers.process.fast_path).
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import ClassVar

from controlplane.contract.states import Phase
from workers.attempt.attempt import AttemptRun, DriverClosed, DriverContext
from workers.attempt.disk import first_check_seconds, watch_disk
from workers.attempt.events import FoundContainer, Launch
from workers.attempt.gangs.gang import GangSupervisor
from workers.attempt.health import watch_health
from workers.attempt.idleness import watch_idleness
from workers.attempt.outcome import DISK_LIMIT, HEALTH, IDLE, LIFETIME, STOPPED, TIMEOUT
from workers.attempt.pipeline import ADOPT, START, Step, run
from workers.attempt.runtime import EngineAway, EngineError
from workers.attempt.steps.clean import remove_all
from workers.attempt.threads import DaemonPool, ThreadGate, Timer
from workers.drivers.process.engine import ProcessEngine
from workers.drivers.process.fast_path import PlainProcesses
from workers.exec.program import ExecCommand, ExecProgram, ExecRefused

# Concurrent builds of attempts that build quickly: one thread for each of hundreds of attempts
# tripled the CPU time (measured).
MAX_QUICK = 4
MAX_ATTEMPTS = 1024  # threads for attempts of one cell; further ones queue
STOPPING_THREADS = 8  # an unanswered signal occupies one of them
REMOVING_THREADS = 4
AGAIN_SECONDS = 2.0  # until an unanswered signal, or a SIGKILL without effect, is sent again


class PipelineDriver:
    """Runs attempts on an Engine; see workers.drivers.base for its interface."""

    attempt_type: ClassVar[type[AttemptRun]] = AttemptRun

    def __init__(self, context: DriverContext) -> None:
        self.name = context.engine.name
        self._context = context
        self._engine = context.engine
        self._lock = threading.Lock()
        self._attempts: dict[str, AttemptRun] = {}
        self._to_remove: set[str] = set()  # in charge, removed once they have ended
        self._quick = ThreadGate(MAX_QUICK)
        self._running = DaemonPool("attempt", MAX_ATTEMPTS)
        self._stopping = DaemonPool("stop", STOPPING_THREADS)
        self._removing = DaemonPool("remove", REMOVING_THREADS)
        self._timer = Timer()
        self._gangs = GangSupervisor()
        self._plain: PlainProcesses | None = None
        if isinstance(context.engine, ProcessEngine):
            self._plain = PlainProcesses(
                context, context.engine, self._timer, self._continue_in_thread, self._on_ended
            )

    def start(self, launch: Launch) -> None:
        """Begin the attempt, unless it is in charge."""
        self._take_charge(launch, START)

    def adopt(self, launch: Launch) -> None:
        """Take charge again of an attempt of an earlier process, unless it is in charge."""
        self._take_charge(launch, ADOPT)

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        """Order the end of an attempt in charge."""
        self._order_stop(uid, STOPPED, grace_seconds, force)

    def execute(self, command: ExecCommand) -> ExecProgram:
        """Start a program of a user in a running attempt in charge. Raise ExecRefused."""
        command.check()
        with self._lock:
            attempt = self._attempts.get(command.attempt)
        if attempt is None or not attempt.is_started or attempt.ended:
            raise ExecRefused("the attempt does not run")
        try:
            return self._engine.execute(attempt.launch, command)
        except (EngineAway, EngineError) as error:
            raise ExecRefused(str(error)) from error

    def find(self) -> Iterable[FoundContainer]:
        """Return the containers of this installation and cell. Raise EngineAway."""
        try:
            return list(self._engine.find())
        except EngineError as error:
            raise EngineAway(str(error)) from error

    def remove(self, uid: str) -> None:
        """Delete container and workspace, after the end of an attempt in charge."""
        with self._lock:
            attempt = self._attempts.get(uid)
            waits = attempt is not None and not attempt.end_reported
            if waits:
                self._to_remove.add(uid)
            else:
                self._attempts.pop(uid, None)
        if waits:
            self.stop(uid, grace_seconds=0.0, force=True)
        elif self._plain is None or not self._plain.forget(uid):
            self._removing.submit(partial(self._remove, uid))

    def close(self) -> None:
        """Release threads and connections; containers keep running."""
        self._context.closed.set()
        with self._lock:
            attempts = list(self._attempts.values())
        for attempt in attempts:
            if attempt.capture is not None:
                attempt.capture.begin()  # supersedes the current reader of the output
        for closable in (self._timer, self._running, self._stopping, self._removing):
            closable.close()
        self._context.shipper.close()
        self._context.web.close()
        self._engine.close()

    def _take_charge(self, launch: Launch, steps: tuple[Step, ...]) -> None:
        is_adopted = steps is ADOPT
        attempt = self.attempt_type(launch, self._context, self._on_running, is_adopted=is_adopted)
        with self._lock:
            if launch.uid in self._attempts or self._context.closed.is_set():
                return
            self._attempts[launch.uid] = attempt
        if not is_adopted:
            try:
                attempt.enter(Phase.PREPARING)
            except DriverClosed:
                return
        if self._plain is not None and steps is START and self._plain.take(attempt):
            return
        work = partial(self._run, attempt, steps)
        if steps is START and self._is_quick(launch):
            self._quick.enter(attempt.uid, partial(self._running.submit, work))
        else:
            self._running.submit(work)

    def _is_quick(self, launch: Launch) -> bool:
        """Return whether its start needs no fetch and no wait."""
        spec = launch.spec
        slow = spec.inputs or spec.needs_launch_context or spec.exclusive
        return self._engine.name == "process" and not slow

    def _run(self, attempt: AttemptRun, steps: tuple[Step, ...]) -> None:
        try:
            run(attempt, steps)
        finally:
            self._quick.leave(attempt.uid)
        self._on_ended(attempt)

    def _continue_in_thread(self, attempt: AttemptRun, steps: tuple[Step, ...]) -> None:
        """Run an attempt in a thread from these steps on; without steps, wait for its end."""
        self._running.submit(partial(self._run, attempt, steps))

    def _on_ended(self, attempt: AttemptRun) -> None:
        """Forget an attempt whose end was reported, unless the driver was closed."""
        with self._lock:
            is_to_remove = attempt.uid in self._to_remove
            self._to_remove.discard(attempt.uid)
        if is_to_remove and attempt.end_reported:
            self.remove(attempt.uid)

    def _on_running(self, attempt: AttemptRun) -> None:
        self._quick.leave(attempt.uid)
        if attempt.is_adopted:
            with contextlib.suppress(EngineAway, EngineError):
                self._engine.end_programs(attempt.uid)
        if attempt.started_at is not None:
            self._begin_limits(attempt)
        if attempt.launch.spec.is_gang:
            self._gangs.watch(attempt)
        if attempt.launch.spec.health_check is not None:
            stop = self._stop_for(attempt, HEALTH)
            _watch("health", attempt, lambda: watch_health(attempt, self._begin_limits, stop))
        self._deliver_stop(attempt)

    def _begin_limits(self, attempt: AttemptRun) -> None:
        """Start the time, disk and idle limits of an attempt that is RUNNING."""
        spec, started_at = attempt.launch.spec, attempt.started_at
        assert started_at is not None
        limits = ((spec.timeout_seconds, TIMEOUT), (spec.lifetime_seconds, LIFETIME))
        limits_set = [(limit, reason) for limit, reason in limits if limit is not None]
        if limits_set:  # both count from its start: the shorter one applies
            limit, reason = min(limits_set, key=itemgetter(0))
            rest = started_at + limit - self._context.now()
            self._timer.call_in(max(rest, 0.0), self._stop_for(attempt, reason))
        seconds = first_check_seconds(spec)
        if seconds is not None:
            self._timer.call_in(seconds, partial(self._begin_disk_limit, attempt))
        if spec.idle_timeout_seconds is not None:
            stop = self._stop_for(attempt, IDLE)
            _watch("idle", attempt, lambda: watch_idleness(attempt, stop))

    def _begin_disk_limit(self, attempt: AttemptRun) -> None:
        if not attempt.ended:
            kill = partial(self._order_stop, attempt.uid, DISK_LIMIT, 0.0, True)
            _watch("disk", attempt, lambda: watch_disk(attempt, kill))

    def _stop_for(self, attempt: AttemptRun, reason: str) -> Callable[[], None]:
        grace = attempt.launch.spec.stop_grace_seconds
        return partial(self._order_stop, attempt.uid, reason, grace, False)

    def _remove(self, uid: str) -> None:
        def pause(seconds: float) -> bool:
            return self._context.closed.wait(seconds)

        # Only engines with images have slow removals.
        turn = self._context.turns.take(lambda: None, is_new=True)
        with turn if self._engine.needs_image else contextlib.nullcontext():
            if remove_all(self._engine, uid, self._context.home / "work" / uid, pause):
                self._context.secrets.remove(uid)

    def _order_stop(self, uid: str, reason: str, grace_seconds: float, force: bool) -> None:
        with self._lock:
            attempt = self._attempts.get(uid)
        if attempt is None:
            return
        if attempt.ended:
            if reason == STOPPED:
                attempt.break_off()
            return
        if reason != STOPPED:
            attempt.note_limit(reason)
        attempt.order_stop(reason, grace_seconds=grace_seconds, force=force)
        if self._plain is not None:
            self._plain.withdraw(attempt)
        self._deliver_stop(attempt)

    def _deliver_stop(self, attempt: AttemptRun) -> None:
        """Send the stop signal once, and SIGKILL after the grace period, if a process exists."""
        order = attempt.stop_to_deliver
        if order is None:
            return
        rest = attempt.seconds_to_kill()
        if rest <= 0:
            self._stopping.submit(partial(self._kill, attempt))
            return
        if attempt.take_signal():
            self._stopping.submit(partial(self._send, attempt, attempt.launch.spec.stop_signal))
        self._timer.call_in(rest, lambda: self._stopping.submit(partial(self._kill, attempt)))

    def _kill(self, attempt: AttemptRun) -> None:
        if attempt.stop_to_deliver is not None and attempt.take_kill():
            self._send(attempt, "KILL")

    def _send(self, attempt: AttemptRun, signal_name: str) -> None:
        """Send a signal; repeat SIGKILL and unanswered signals until the attempt has ended."""
        if attempt.ended or self._context.closed.is_set():
            return
        again: Callable[[], None] | None = partial(self._send, attempt, signal_name)
        try:
            with attempt.delivery:
                if self._engine.signal(attempt.uid, signal_name):
                    attempt.mark_delivered()
            if signal_name != "KILL":
                again = None
        except (EngineAway, EngineError) as error:
            attempt.log.warning("signal_failed", signal=signal_name, error=str(error))
        if again is not None and not attempt.ended:
            work = again
            self._timer.call_in(AGAIN_SECONDS, lambda: self._stopping.submit(work))


def _watch(name: str, attempt: AttemptRun, work: Callable[[], None]) -> None:
    """Run a watcher of the attempt in its own thread."""
    threading.Thread(target=work, name=f"{name}-{attempt.uid}", daemon=True).start()
