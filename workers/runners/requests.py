"""Call the runner of one attempt: build the arguments, limit the time, check the answer."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from workers.runners import records
from workers.runners.calls import RunnerCalls
from workers.runners.interface import (
    CALL_SECONDS,
    AbortResult,
    AttemptLog,
    Context,
    Runner,
    RunnerObservation,
    RunnerTask,
    Stop,
)
from workers.runners.records import RunnerRecord, StateNotStorable

MIN_POLL_SECONDS = 0.01  # between two calls
MAX_POLL_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class RunnerCallTarget:
    """One attempt and its runner. `encoded_secrets`: base64 values by name."""

    runner: Runner
    calls: RunnerCalls
    task: RunnerTask
    log: AttemptLog
    now: Callable[[], float]
    timeout_seconds: float | None = None
    encoded_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    call_seconds: float = CALL_SECONDS

    def reconcile(self, kept: RunnerRecord) -> tuple[RunnerRecord, float]:
        """Return the record to store, and the seconds until the next call.

        Raise CallTimedOut, CallsExhausted, StateNotStorable, and the errors of the runner.
        """
        context = self._context(kept)
        answer: object = self._call("reconcile", lambda: self.runner.reconcile(context))
        if not isinstance(answer, RunnerObservation):
            raise StateNotStorable(
                f"reconcile returned {type(answer).__name__}, not RunnerObservation"
            )
        return records.checked(answer, kept, context.now), _pause(answer.poll_seconds)

    def abort(self, kept: RunnerRecord, stop: Stop) -> tuple[RunnerRecord, float]:
        """Return the record to store, and the seconds until the next call, like `reconcile`."""
        context = replace(self._context(kept), stop=stop)
        answer: object = self._call("abort", lambda: self.runner.abort(context))
        if not isinstance(answer, AbortResult):
            raise StateNotStorable(f"abort returned {type(answer).__name__}, not AbortResult")
        state = records.checked_state(answer.state, kept.state)
        found = replace(kept, state=state, is_over=bool(answer.is_done))
        return found, _pause(answer.poll_seconds)

    def _call(self, what: str, function: Callable[[], object]) -> object:
        return self.calls.call(f"{what} of {self.task.uid}", function, self.call_seconds)

    def _context(self, kept: RunnerRecord) -> Context:
        deadline = None
        if kept.started_at is not None and self.timeout_seconds is not None:
            deadline = kept.started_at + self.timeout_seconds
        return Context(
            task=self.task,
            state=kept.state,
            log=self.log,
            now=self.now(),
            secrets={name: base64.b64decode(value) for name, value in self.encoded_secrets.items()},
            deadline=deadline,
        )


def _pause(seconds: float) -> float:
    try:
        return min(max(float(seconds), MIN_POLL_SECONDS), MAX_POLL_SECONDS)
    except (TypeError, ValueError) as error:
        raise StateNotStorable(f"{seconds!r} is not a number of seconds") from error


def describe_task(
    run: RunAttempt, spec: GroupSpec, env: Mapping[str, str], *, cell: str, root: Path
) -> RunnerTask:
    """Return the description of an attempt for its runner."""
    return RunnerTask(
        uid=run.uid,
        number=run.number,
        task_id=run.task_id,
        index=run.task_index,
        job_id=spec.job_id,
        job_name=spec.job_name,
        group=spec.group,
        replicas=spec.replicas,
        cell=cell,
        image=spec.image,
        command=(*(spec.entrypoint or ()), *spec.command),
        env={**env, "CELLRUN_ROOT": str(root)},
        resources=spec.resources,
        inputs=tuple(item.path for item in spec.inputs),
        outputs={item.name: item.path for item in spec.outputs},
        result_file=spec.result_file,
        checkpoint_path=spec.checkpoint_path,
        root=root,
    )
