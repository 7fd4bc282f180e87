"""The loop of an attempt that a runner drives: reconcile until an end, or abort until done.

Each answer of the runner is on disk before the next call, and before it is reported.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.contract import states
from controlplane.contract.codec import clean_text
from controlplane.contract.messages.reports import MESSAGE_CHARS, RUNNER_FINAL, head_of_result
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun, DriverClosed, DriverContext
from workers.attempt.events import EndedEvent, Launch, ReconciledEvent
from workers.attempt.outcome import RUNNER, AttemptFailed, Exit, judge_exit
from workers.attempt.steps.checkpoint import keep_leftovers
from workers.attempt.steps.collect import collect_output, collect_result
from workers.attempt.steps.outputs import keep_outputs
from workers.control_api import ControlPlaneRefused
from workers.runners import records
from workers.runners.calls import CallsExhausted, CallTimedOut
from workers.runners.interface import FailureOrigin, RunnerPhase, Stop
from workers.runners.records import RunnerRecord, StateNotStorable
from workers.runners.requests import RunnerCallTarget

# An abort is retried without end: until it is done, the work outside occupies its resources.
ABORT_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
EXHAUSTED_SECONDS = 5.0  # until the next check whether a hung call has returned
FAILED = "failed"  # stop reason of an abort without a stop order
_BUILDING = {
    RunnerPhase.QUEUED: states.Phase.PREPARING,
    RunnerPhase.INITIALIZING: states.Phase.CREATING,
}


class Wake:
    """Wakes the thread of an attempt: for a stop, a forced stop, or the close of the driver."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news = 0
        self.is_stopped = False
        self.is_forced = False

    def stop(self, *, force: bool) -> None:
        """Record a stop order, or that its grace period is over, and wake the thread."""
        with self._changed:
            is_new = not self.is_stopped or (force and not self.is_forced)
            self.is_stopped, self.is_forced = True, self.is_forced or force
            self._news += is_new
            self._changed.notify_all()

    def shake(self) -> None:
        """Wake the thread without a stop."""
        with self._changed:
            self._news += 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, or when there is news since the last wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._news > 0, seconds)
            self._news = 0


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of a runner's attempt in its workspace."""

    folder: Path

    @classmethod
    def of(cls, workspace: Path) -> "Paths":
        """Return the paths for an attempt's workspace."""
        return cls(workspace / "runner")

    @property
    def order(self) -> Path:
        """The order, which is written before the first call of the runner."""
        return self.folder / "order.json"

    @property
    def kept(self) -> Path:
        """The last answer of the runner."""
        return self.folder / "kept.json"


class RunnerAttempt(AttemptRun):
    """An attempt that a runner drives instead of a process."""

    def __init__(
        self,
        launch: Launch,
        context: DriverContext,
        on_running: Callable[[AttemptRun], None],
        *,
        is_adopted: bool,
    ) -> None:
        super().__init__(launch, context, on_running, is_adopted=is_adopted)
        self.paths = Paths.of(self.workspace)
        self.ordered = launch  # before the launch context adds secrets
        self.wake = Wake()
        self.kept = RunnerRecord()
        self.is_known = False  # `kept` is the last answer of its runner
        self.tried_context = False  # the launch context was requested
        self._has_limits = False

    def recall(self, kept: RunnerRecord) -> None:
        """Set the last answer, as read from disk."""
        self.kept, self.is_known = kept, True

    def begin_limits(self) -> None:
        """Begin the limits of an adopted attempt that was RUNNING before, without further waits."""
        if self.kept.started_at is not None:
            self.mark_runs(self.kept.started_at)

    def take_limits(self) -> bool:
        """Return whether the caller must begin the limits: True for the first caller only."""
        with self._lock:
            is_first, self._has_limits = not self._has_limits, True
        return is_first

    def begin(self) -> None:
        """Record that the runner is called from now on, so that it receives stop orders."""
        if self.is_started:
            return
        self.is_started = True
        if self.kept.started_at is not None and self.started_at is None:
            self._emit_started(self.kept.started_at)
        with self._lock:
            self._running = True
        self._on_running(self)

    def mark_runs(self, at: float) -> None:
        """Report RUNNING since `at`, and begin the limits."""
        if self.started_at is None:
            self._emit_started(at)
            self._on_running(self)

    def keep(self, kept: RunnerRecord) -> None:
        """Write the answer to disk, then report it. Raise OSError."""
        if kept == self.kept and self.paths.kept.exists():
            return
        records.write(self.paths.kept, kept)
        self.recall(kept)
        self.emit_kept()

    def emit_kept(self) -> None:
        """Report the last answer of the runner."""
        kept = self.kept
        text = kept.words or str(kept.phase)
        self.emit(ReconciledEvent(self.uid, text, kept.state, self.context.now()))


def drive(attempt: RunnerAttempt, runner: RunnerCallTarget) -> EndedEvent:
    """Call the runner until the attempt has ended, and return the end. Raise DriverClosed."""
    attempt.begin()
    if not attempt.kept.is_over and not attempt.kept.phase.is_end:
        _reconcile_until_end(attempt, runner)
    if not attempt.kept.is_over:
        _abort_until_done(attempt, runner)
    return _ended(attempt)


def _reconcile_until_end(attempt: RunnerAttempt, runner: RunnerCallTarget) -> None:
    """Call `reconcile` until an end, or until the attempt must be aborted."""
    faults, pauses = 0, attempt.context.back_off
    while not attempt.wake.is_stopped and not attempt.kept.stopped_for:
        attempt.rest(0)
        try:
            kept, pause = runner.reconcile(attempt.kept)
            attempt.keep(kept)
        except DriverClosed:
            raise
        except CallsExhausted as error:
            attempt.log.warning("reconcile_delayed", error=str(error))
            attempt.wake.wait(EXHAUSTED_SECONDS)
            continue
        except (CallTimedOut, StateNotStorable) as error:
            _give_up(attempt, runner, f"reconcile: {error}")
            return
        except Exception as error:  # of the runner's code, or a full disk
            faults += 1
            text = f"{type(error).__name__}: {error}"
            attempt.log.warning("runner_failed", error=text, exc_info=True)
            runner.log.err(f"[cellrun: its runner failed: {text}]")
            if faults > len(pauses):
                _give_up(attempt, runner, f"reconcile failed {faults} times in a row: {text}")
                return
            attempt.wake.wait(pauses[faults - 1])
            continue
        faults = 0
        if kept.phase.is_end:
            return
        if kept.phase is RunnerPhase.RUNNING:
            attempt.mark_runs(kept.started_at or runner.now())
        elif attempt.started_at is None:
            attempt.enter(_BUILDING[kept.phase])
        attempt.wake.wait(pause)


def _give_up(
    attempt: RunnerAttempt,
    runner: RunnerCallTarget,
    message: str,
    fault: FailureOrigin = FailureOrigin.SYSTEM,
) -> None:
    """Record a failure, after which the runner is only called to abort."""
    runner.log.err(f"[cellrun: {message}]")
    failed = replace(
        attempt.kept,
        phase=RunnerPhase.RETRYABLE_FAILURE,
        fault=fault,
        message=clean_text(message, MESSAGE_CHARS),
        reason="",
    )
    _try_to_keep(attempt, failed)


def _abort_until_done(attempt: RunnerAttempt, runner: RunnerCallTarget) -> None:
    """Call `abort` until it is done, however long that takes."""
    if not attempt.kept.phase.is_end and not attempt.kept.stopped_for:
        reason = attempt.stopped_for or FAILED
        _try_to_keep(attempt, replace(attempt.kept, stopped_for=reason))
    tries = 0
    while not attempt.kept.is_over:
        attempt.rest(0)
        stop = Stop(attempt.kept.stopped_for or FAILED, attempt.wake.is_forced)
        try:
            kept, pause = runner.abort(attempt.kept, stop)
        except Exception as error:
            text = f"abort: {type(error).__name__}: {error}"
            attempt.log.warning("abort_failed", error=text)
            runner.log.err(f"[cellrun: {text}]")
            attempt.wake.wait(ABORT_PAUSES[min(tries, len(ABORT_PAUSES) - 1)])
            tries += 1
            continue
        _try_to_keep(attempt, kept)
        if not kept.is_over:
            attempt.wake.wait(pause)


def _try_to_keep(attempt: RunnerAttempt, kept: RunnerRecord) -> None:
    """Keep the answer; on a full disk continue without: a successor at worst aborts again."""
    try:
        attempt.keep(kept)
    except OSError as error:
        attempt.log.error("runner_state_not_kept", error=str(error))
        attempt.recall(kept)


def await_record(attempt: RunnerAttempt) -> RunnerRecord | None:
    """Wait until the record can be read, and return it; None: the runner was never called."""
    tries = 0
    while not attempt.is_known:
        attempt.rest(0)
        try:
            if not attempt.paths.order.exists():
                return None
            kept = records.read(attempt.paths.kept)
        except OSError as error:
            attempt.log.error("runner_state_unreadable", error=str(error))
            attempt.wake.wait(ABORT_PAUSES[min(tries, len(ABORT_PAUSES) - 1)])
            tries += 1
            continue
        if kept is None:
            return None
        attempt.recall(kept)
    return attempt.kept


def abort_for(attempt: RunnerAttempt, runner: RunnerCallTarget, failure: AttemptFailed) -> None:
    """Abort the work outside of a failed attempt; return when it has ended."""
    try:
        attempt.begin()
    except DriverClosed:
        raise
    except Exception:  # the abort continues, but no stop order can force it
        attempt.log.exception("stop_not_taken")
    if not attempt.kept.phase.is_end and not attempt.kept.stopped_for:
        if failure.kind is None:
            _try_to_keep(attempt, replace(attempt.kept, stopped_for=failure.reason or FAILED))
        else:
            fault = FailureOrigin.USER if failure.kind is FailureKind.USER else FailureOrigin.SYSTEM
            _give_up(attempt, runner, failure.message or "it failed", fault)
    _abort_until_done(attempt, runner)


def _ended(attempt: RunnerAttempt) -> EndedEvent:
    kept = attempt.kept
    attempt.mark_ended()
    with attempt.step("collect"):
        collect_output(attempt)
    if kept.phase is RunnerPhase.SUCCEEDED:
        with attempt.step("outputs"):
            keep_outputs(attempt)
        return _succeeded(attempt, kept)
    keep_leftovers(attempt)
    if kept.phase is RunnerPhase.FAILED:
        kind, reason, message = FailureKind.USER, RUNNER_FINAL, _explain(kept)
    elif kept.phase is RunnerPhase.RETRYABLE_FAILURE:
        is_system = kept.fault is FailureOrigin.SYSTEM
        kind, reason = FailureKind.SYSTEM if is_system else FailureKind.USER, RUNNER
        message = _explain(kept)
    else:
        verdict = judge_exit(Exit(0, stopped_for=kept.stopped_for))
        return _end(attempt, None, verdict.reason, verdict.message)
    return _end(attempt, kind, reason, message)


def _explain(kept: RunnerRecord) -> str:
    text = ": ".join(filter(None, (kept.reason, kept.message)))
    return clean_text(text or "its runner gave no reason", MESSAGE_CHARS)


def _end(
    attempt: RunnerAttempt, kind: FailureKind | None, reason: str | None, message: str | None
) -> EndedEvent:
    return EndedEvent(
        attempt.uid,
        attempt.context.now(),
        failure_kind=kind,
        reason=reason,
        message=message,
        outputs=attempt.outputs,
        started_at=attempt.started_at,
        usage=attempt.used(),
    )


def _succeeded(attempt: RunnerAttempt, kept: RunnerRecord) -> EndedEvent:
    with attempt.step("collect"):
        if kept.result is None:
            result, truncated = collect_result(attempt)
        else:
            result, truncated = head_of_result(kept.result.encode())
    return replace(
        _end(attempt, None, None, None),
        exit_code=0,
        result=result,
        result_truncated=truncated,
    )


def failed(attempt: RunnerAttempt, failure: AttemptFailed) -> EndedEvent:
    """Return the end of a failed attempt, of which nothing runs outside."""
    attempt.mark_ended()
    keep_leftovers(attempt)
    attempt.context.shipper.finish(attempt.uid, 0.0)
    ended = _end(attempt, failure.kind, failure.reason, clean_text(failure.message, MESSAGE_CHARS))
    return replace(ended, exit_code=failure.exit_code, never_created=attempt.never_created)


def wait_for_launch_context(attempt: RunnerAttempt, read: Callable[[], None], pause: float) -> None:
    """Call `read`, which fetches the launch context, until it succeeds; a stop order ends the wait.

    Raise AttemptFailed if the context does not exist any more: the runner needs it.
    """
    while True:
        try:
            read()
            return
        except AttemptFailed as failure:
            if failure.kind is None:
                return
            attempt.log.warning("launch_context_delayed", error=failure.message)
            if failure.kind is FailureKind.USER or isinstance(
                failure.__cause__, ControlPlaneRefused
            ):
                if attempt.kept.phase.is_end or attempt.kept.stopped_for:
                    return
                raise
        try:
            attempt.pause(pause)
        except AttemptFailed:
            return
