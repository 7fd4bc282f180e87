"""One running attempt: the state that its steps share, and its stop order."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from structlog.stdlib import BoundLogger

from controlplane.contract.codec import clean_text
from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.states import Phase
from workers import clock
from workers.attempt.capture import Capture
from workers.attempt.events import (
    BuildingEvent,
    DriverEvent,
    Launch,
    Listener,
    StageFailedEvent,
    StartedEvent,
)
from workers.attempt.fair_semaphore import FairSemaphore
from workers.attempt.outcome import AttemptFailed
from workers.attempt.pulls import Pulls
from workers.attempt.runtime import ContainerView, Engine, PlacedFile
from workers.control_api import Web
from workers.output.shipper import LogShipper
from workers.remote_files import Storage
from workers.secret_folder import SecretFolder

log = structlog.get_logger(__name__)

LOST_CHARS = 200  # of the reason why an output of a failed attempt was not kept
STOP_CHECK_SECONDS = 0.2  # interval of the checks for a stop order before the start


class DriverClosed(Exception):
    """Raised when the driver was closed and releases its attempts; containers keep running."""


@dataclass(frozen=True, slots=True)
class DriverContext:
    """The resources that all attempts of a driver share.

    `back_off`: seconds between the tries of a stage. `address`: the host at which others reach the
    ports of this cell. `max_files_bytes`: the limit for the inputs, the outputs, or the checkpoint
    of one attempt. `privileged_allowed`: False: neither privileged tasks nor capabilities beyond
    those that every task may have. `mount_roots`: folders of this host that tasks may mount; None:
    those that the pool allows.
    """

    cell: str
    engine: Engine
    emit: Listener
    home: Path
    max_log_bytes: int
    turns: FairSemaphore
    pulls: Pulls
    shipper: LogShipper
    web: Web
    secrets: SecretFolder
    storage: Storage = field(default_factory=Storage)
    max_files_bytes: int = 10 * 2**30
    privileged_allowed: bool = True
    mount_roots: tuple[Path, ...] | None = None
    back_off: tuple[float, ...] = (1.0, 4.0)
    closed: threading.Event = field(default_factory=threading.Event)
    now: Callable[[], float] = clock.wall_seconds
    address: Callable[[], str] = lambda: "127.0.0.1"


@dataclass(slots=True)
class StopOrder:
    """A stop order. `kill_at`: monotonic clock; `delivered`: a signal reached the process."""

    reason: str
    kill_at: float
    signalled: bool = False
    killed: bool = False
    delivered: bool = False


class AttemptRun:
    """The state of one attempt's pipeline; only its own thread writes it, others order a stop."""

    def __init__(
        self,
        launch: Launch,
        context: DriverContext,
        on_running: Callable[["AttemptRun"], None],
        *,
        is_adopted: bool = False,
    ) -> None:
        """Prepare the state; `on_running` is called once, when the process may be stopped.

        `is_adopted`: an earlier process of this cell started the attempt.
        """
        self._on_running = on_running
        self.launch = launch
        self.context = context
        self.engine = context.engine
        self.workspace = context.home / "work" / launch.uid
        self.inputs_folder = self.workspace / "inputs"
        self.log_folder = context.home / "logs" / launch.uid
        self.is_adopted = is_adopted
        self.begun_before = False
        self.is_uncreated = False  # no process of this cell ever began a create
        self.placed: list[PlacedFile] = []
        self.is_started = False
        self.capture: Capture | None = None
        self.feed: threading.Thread | None = None  # sends the standard input
        self.may_exist = False  # a container may have been created
        self.process_started_at = 0.0
        self.started_at: float | None = None  # time of RUNNING; with a health check: of its success
        self.container_id: str | None = None
        self.addresses: Mapping[str, str] | None = None
        self.launch_context = LaunchContext()
        self.has_whole_output = True  # as far as it is below the limit
        # Stored outputs: {name, size, sha256, uri}.
        self.outputs: tuple[Mapping[str, Any], ...] | None = None
        self.usage: dict[str, Any] = {}  # reported at the end as usage
        self.step_seconds: dict[str, float] = {}
        self.unhealthy = ""  # the message of a watcher that stopped the attempt
        self.over = threading.Event()  # no process runs any more
        self.end_reported = False
        # Held while Started is reported, so that an end follows it.
        self._starting = threading.Lock()
        self._phase: tuple[Phase, int | None] | None = None
        self._lock = threading.Lock()
        self.delivery = threading.Lock()  # held while a signal is under way
        self._running = False
        self._stop: StopOrder | None = None
        self._stop_ordered = threading.Event()
        self._broken_off = threading.Event()

    @property
    def uid(self) -> str:
        """The attempt's uid."""
        return self.launch.uid

    @property
    def log(self) -> BoundLogger:
        """The log, bound to this attempt, its task, its job and its cell."""
        order = self.launch
        bound: BoundLogger = log.bind(
            job=order.spec.job_id, task=order.run.task_id, attempt=order.uid, cell=self.context.cell
        )
        return bound

    @property
    def never_created(self) -> bool:
        """Whether certainly no container ever existed."""
        return self.is_uncreated and not self.may_exist

    def emit(self, event: DriverEvent) -> None:
        """Pass an event to the driver's listener. Raise DriverClosed."""
        if self.context.closed.is_set():
            raise DriverClosed
        self.context.emit(event)

    def enter(self, phase: Phase, progress: int | None = None) -> None:
        """Report the phase of BUILDING, once per change."""
        if self._phase != (phase, progress):
            self._phase = (phase, progress)
            self.emit(BuildingEvent(self.uid, phase, progress, self.context.now()))

    def note_try(self, text: str) -> None:
        """Report that a try of a stage failed and that another follows."""
        self.emit(StageFailedEvent(self.uid, text, self.context.now()))

    def mark_running(self, view: ContainerView, addresses: Mapping[str, str] | None) -> None:
        """Record and report the start; begin limits, and deliver an earlier stop order.

        With a health check, RUNNING is reported once the check has passed, which may have been in
        an earlier process of the cell.
        """
        self.is_started = True
        self.container_id = view.container_id
        self.addresses = addresses
        self.process_started_at = view.started_at or self.context.now()
        if self.launch.spec.health_check is None:
            self._emit_started(self.process_started_at)
        elif self.launch.started_at is not None:
            self._emit_started(self.launch.started_at)
        else:
            self.enter(Phase.CHECKING)
        with self._lock:
            self._running = True
        self._on_running(self)

    def mark_healthy(self) -> bool:
        """Report RUNNING after the first successful health check; False: it ended before."""
        with self._starting:
            if self.ended:
                return False
            self._emit_started(self.context.now())
            return True

    def _emit_started(self, at: float) -> None:
        self.started_at = at
        self.emit(StartedEvent(self.uid, at, self.container_id, self.addresses))

    @property
    def ended(self) -> bool:
        """Whether no process runs any more."""
        return self.over.is_set()

    def mark_ended(self) -> None:
        """Record that no process runs or will run: a stop order has no target."""
        with self._starting:
            self.over.set()

    def note_limit(self, reason: str) -> None:
        """Record on disk the first limit of its own that stops the attempt, for `recall_limit`."""
        try:
            with self._limit_file.open("x", encoding="ascii") as file:
                file.write(reason)
        except FileExistsError:
            return
        except OSError as error:  # a full disk must not prevent the stop
            self.log.warning("stop_reason_not_kept", error=str(error))

    def recall_limit(self) -> None:
        """Restore the limit for which an earlier process of the cell began to stop the attempt.

        Otherwise the end by that signal would count as caused from outside.
        """
        try:
            reason = self._limit_file.read_text(encoding="ascii")
        except (OSError, ValueError):
            return
        self.order_stop(reason, grace_seconds=self.launch.spec.stop_grace_seconds, force=False)
        self.mark_delivered()

    @property
    def _limit_file(self) -> Path:
        return self.workspace / "limit"

    def order_stop(self, reason: str, *, grace_seconds: float, force: bool) -> None:
        """Record a stop order; the first one sets the reason, the earliest one the kill."""
        kill_at = time.monotonic() + (0.0 if force else max(grace_seconds, 0.0))
        with self._lock:
            if self._stop is None:
                self._stop = StopOrder(reason, kill_at)
            else:
                self._stop.kill_at = min(self._stop.kill_at, kill_at)
        self._stop_ordered.set()

    def break_off(self) -> None:
        """Record that a stop order arrived after the process ended: its files are not kept."""
        self._broken_off.set()

    @property
    def is_broken_off(self) -> bool:
        """Whether a stop was ordered after the process had ended."""
        return self._broken_off.is_set()

    @property
    def stop_to_deliver(self) -> StopOrder | None:
        """The stop order, if there is one and a process that can receive it."""
        with self._lock:
            return self._stop if self._running and not self.ended else None

    def seconds_to_kill(self) -> float:
        """Return the rest of the grace period; infinite without a stop order."""
        with self._lock:
            return self._stop.kill_at - time.monotonic() if self._stop else float("inf")

    @property
    def stopped_for(self) -> str | None:
        """The reason of the cell's stop; None: no signal of the cell reached the process.

        Waits for a signal that is being sent, because it may have ended the process.
        """
        with self.delivery, self._lock:
            return self._stop.reason if self._stop and self._stop.delivered else None

    def check(self) -> None:
        """Raise AttemptFailed after a stop order before the start, DriverClosed after a close."""
        if self.context.closed.is_set():
            raise DriverClosed
        with self._lock:
            if self._stop is not None and not self._running:
                raise AttemptFailed(None, self._stop.reason, "stopped before it started")

    def pause(self, seconds: float) -> None:
        """Wait before the start; a stop order or the driver's close ends the wait as in `check`."""
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            self.check()
            self._stop_ordered.wait(min(rest, STOP_CHECK_SECONDS))
        self.check()

    def rest(self, seconds: float) -> None:
        """Wait regardless of stop orders. Raise DriverClosed."""
        if self.context.closed.wait(seconds):
            raise DriverClosed

    def take_signal(self) -> bool:
        """Return whether the caller must send the stop signal: True for the first caller only."""
        with self._lock:
            order = self._stop
            if order is None or order.signalled:
                return False
            order.signalled = True
            return True

    def take_kill(self) -> bool:
        """Return whether the caller must send SIGKILL: True for the first caller only."""
        with self._lock:
            order = self._stop
            if order is None or order.killed:
                return False
            order.killed = True
            return True

    def mark_delivered(self) -> None:
        """Record that a signal of the cell reached the process."""
        with self._lock:
            if self._stop is not None:
                self._stop.delivered = True

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the duration of the block to that of the step `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.step_seconds[name] = self.step_seconds.get(name, 0.0) + took

    def note_lost(self, *errors: str) -> None:
        """Add to the usage why outputs of an unsuccessful attempt were not stored."""
        self.log.warning("outputs_lost", errors=errors)
        texts = [clean_text(error, LOST_CHARS) for error in errors]
        self.usage["outputs_lost"] = [*self.usage.get("outputs_lost", ()), *texts]

    def used(self) -> Mapping[str, Any]:
        """Return the usage to report at the end: seconds of each step, and measurements."""
        steps = {name: round(took, 4) for name, took in self.step_seconds.items()}
        return {**self.usage, "steps": steps}

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold one of the few places for heavy calls to the engine.

        An attempt in the phase `creating`, which has a time limit, precedes those in earlier
        phases.
        """
        is_new = self._phase is None or self._phase[0] is not Phase.CREATING
        with self.context.turns.take(self.check, is_new=is_new):
            yield
