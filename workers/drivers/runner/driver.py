"""Attempts that runners of other packages drive; stops, limits, files and logs work as usual.

There is no container: `reconcile_loop` calls the runner instead.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from controlplane.contract.messages.reports import SPEC
from controlplane.contract.states import FailureKind
from workers import clock
from workers.attempt.attempt import AttemptRun, DriverClosed, DriverContext
from workers.attempt.events import EndedEvent, Launch
from workers.attempt.outcome import DISK, ENGINE, VANISHED, AttemptFailed
from workers.attempt.pipeline import BUILD, NAMES, Step
from workers.attempt.steps.create import create_container
from workers.attempt.steps.gang import join_gang
from workers.attempt.steps.launch_context import read_launch_context
from workers.attempt.steps.permit import await_permit
from workers.attempt.steps.pull import ensure_image
from workers.attempt.steps.secrets import write_secrets
from workers.attempt.steps.start import start_container
from workers.attempt.steps.workspace import begin_creation, check_begun, make_workspace
from workers.drivers.pipeline import PipelineDriver
from workers.drivers.runner.engine import RunnerEngine
from workers.drivers.runner.log import LineWriter
from workers.drivers.runner.reconcile_loop import (
    RunnerAttempt,
    abort_for,
    await_record,
    drive,
    failed,
    wait_for_launch_context,
)
from workers.runners import records
from workers.runners.calls import RunnerCalls
from workers.runners.interface import CALL_SECONDS, AbortResult, Context, Runner, RunnerObservation
from workers.runners.records import RunnerRecord, StateNotStorable
from workers.runners.requests import RunnerCallTarget, describe_task

LAUNCH_CONTEXT_SECONDS = 5.0  # between requests for the launch context of a running attempt
_SKIPPED = (ensure_image, await_permit, start_container)
# Steps whose results are only in memory: a new process of the cell repeats them.
_REPEATED = (read_launch_context, write_secrets, join_gang)


@dataclass(frozen=True, slots=True)
class InstalledRunners:
    """Runners by task type, and the time limit of one call."""

    runners: Mapping[str, Runner]
    call_seconds: float = CALL_SECONDS


class Runners:
    """The runners that a cell offers, and how to call them."""

    def __init__(self, offered: InstalledRunners, *, cell: str, context: DriverContext) -> None:
        """Create the runners; `context` is that of the cell's other attempts."""
        self._runners = offered.runners
        self._cell = cell
        # Separate, so that a hanging runner does not block the others.
        self._calls = {name: RunnerCalls() for name in offered.runners}
        self._call_seconds = offered.call_seconds
        self._max_log_bytes = context.max_log_bytes
        self._home = context.home
        self.engine = RunnerEngine(home=context.home, open_runner=self.open)

    def offers(self, task_type: str) -> bool:
        """Return whether there is a runner for this task type."""
        return task_type in self._runners

    def open(
        self, launch: Launch, encoded_secrets: Mapping[str, str] | None = None
    ) -> RunnerCallTarget:
        """Return the target for calls of an attempt's runner."""
        spec = launch.spec
        root = self.engine.root(launch.uid)
        return RunnerCallTarget(
            runner=self._runners.get(spec.task_type) or _UninstalledRunner(spec.task_type),
            calls=self._calls.get(spec.task_type) or RunnerCalls(),
            task=describe_task(launch.run, spec, launch.env, cell=self._cell, root=root),
            log=LineWriter(self._home / "logs" / launch.uid, self._max_log_bytes),
            now=clock.wall_seconds,
            timeout_seconds=spec.timeout_seconds,
            encoded_secrets=encoded_secrets or {},
            call_seconds=self._call_seconds,
        )


class _UninstalledRunner:
    """Placeholder for a runner that is not installed any more.

    Until it is installed again, its work outside can be neither stopped nor reported as ended.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def reconcile(self, context: Context) -> RunnerObservation:
        raise LookupError(f"there is no runner {self._name} on this cell any more")

    def abort(self, context: Context) -> AbortResult:
        raise LookupError(f"there is no runner {self._name} on this cell any more")


class RunnerDriver(PipelineDriver):
    """See workers.drivers.base. It shares its context with the driver of the engine."""

    attempt_type = RunnerAttempt

    def __init__(self, context: DriverContext, runners: Runners) -> None:
        """`context.engine` is `runners.engine`."""
        super().__init__(context)
        self.runners = runners

    def knows(self, uid: str) -> bool:
        """Return whether an attempt is in charge, or has files here."""
        with self._lock:
            is_here = uid in self._attempts
        return is_here or self.runners.engine.knows(uid)

    def _run(self, attempt: AttemptRun, steps: tuple[Step, ...]) -> None:
        assert isinstance(attempt, RunnerAttempt)
        engine = self.runners.engine
        engine.attach(attempt.uid, attempt.wake)
        try:
            self._run_to_end(attempt)
        except DriverClosed:
            return
        finally:
            engine.detach(attempt.uid)
        self._on_ended(attempt)

    def _run_to_end(self, attempt: RunnerAttempt) -> None:
        try:
            ended = self._run_steps(attempt)
        except DriverClosed:
            raise
        except AttemptFailed as failure:
            ended = self._failed(attempt, failure)
        except Exception as error:
            attempt.log.exception("attempt_failed_unexpectedly")
            code = error.errno if isinstance(error, OSError) else None
            reason = DISK if code in (errno.ENOSPC, errno.EDQUOT) else ENGINE
            words = f"{type(error).__name__}: {error}"
            ended = self._failed(attempt, AttemptFailed(FailureKind.SYSTEM, reason, words))
        attempt.emit(ended)
        attempt.end_reported = True

    def _run_steps(self, attempt: RunnerAttempt) -> EndedEvent:
        check_begun(attempt)
        make_workspace(attempt)
        kept = self._inspect(attempt)
        if kept is None:
            _refuse_unsupported(attempt)
            attempt.tried_context = True
            for step in BUILD:
                attempt.check()
                with attempt.step(NAMES.get(step, step.__name__)):
                    self._run_step(step, attempt)
            attempt.keep(_initial_record(attempt))
        else:
            attempt.recall(kept)
            attempt.emit_kept()
            self._fetch_context_again(attempt)
        with attempt.step("wait"):
            return drive(attempt, self._call_target(attempt))

    def _failed(self, attempt: RunnerAttempt, failure: AttemptFailed) -> EndedEvent:
        """Return the end of a failed attempt, once its runner has aborted its work.

        Raise DriverClosed.
        """
        kept = await_record(attempt)
        if kept is not None and not kept.is_over:
            if not attempt.tried_context:
                try:
                    self._fetch_context_again(attempt)
                except DriverClosed:
                    raise
                except Exception as error:
                    attempt.log.warning("aborted_without_secrets", error=str(error))
            abort_for(attempt, self._call_target(attempt), failure)
        return failed(attempt, failure)

    def _fetch_context_again(self, attempt: RunnerAttempt) -> None:
        """Fetch what an earlier process of the cell had in memory. Raise AttemptFailed."""
        attempt.tried_context = True
        attempt.begin_limits()
        for step in _REPEATED:
            wait_for_launch_context(attempt, partial(step, attempt), LAUNCH_CONTEXT_SECONDS)

    def _call_target(self, attempt: RunnerAttempt) -> RunnerCallTarget:
        return self.runners.open(attempt.launch, attempt.launch_context.secrets)

    def _begin_limits(self, attempt: AttemptRun) -> None:
        assert isinstance(attempt, RunnerAttempt)
        if attempt.take_limits():
            super()._begin_limits(attempt)

    def _inspect(self, attempt: RunnerAttempt) -> RunnerRecord | None:
        """Return the record of an earlier process of the cell; None: it kept none."""
        if attempt.paths.order.exists():
            return records.read(attempt.paths.kept)
        if attempt.is_adopted:
            attempt.may_exist = False
            message = "its runner was not called, and will not be"
            raise AttemptFailed(FailureKind.OUTSIDE, VANISHED, message)
        return None

    def _run_step(self, step: Step, attempt: RunnerAttempt) -> None:
        if step is create_container:
            with attempt.turn():
                begin_creation(attempt)
                self.runners.engine.write_order(attempt.ordered)
        elif step not in _SKIPPED:
            step(attempt)

    def close(self) -> None:
        """End threads; the engine's driver closes the shared context."""
        self._context.closed.set()
        for closable in (self._timer, self._running, self._stopping, self._removing):
            closable.close()
        self.runners.engine.close()


def _initial_record(attempt: RunnerAttempt) -> RunnerRecord:
    """Return the first record: with the state that the previous attempt left, if any."""
    try:
        return RunnerRecord(state=records.checked_state(attempt.launch_context.plugin_state, {}))
    except StateNotStorable:
        return RunnerRecord()


def _refuse_unsupported(attempt: RunnerAttempt) -> None:
    """Raise AttemptFailed if the task has options that only containers support."""
    spec = attempt.launch.spec
    given = {
        "exclusive": spec.exclusive,
        "health_check": spec.health_check is not None,
        "idle_timeout_seconds": spec.idle_timeout_seconds is not None,
        "ports": bool(spec.ports),
    }
    names = [name for name, is_given in given.items() if is_given]
    if names:
        message = f"{', '.join(names)}: not for task_type {spec.task_type}"
        raise AttemptFailed(FailureKind.USER, SPEC, message)
