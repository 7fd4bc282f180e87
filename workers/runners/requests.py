"""Asks the runner of one attempt: what it is given, how long it may take, what it answers."""

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

SHORTEST_SECONDS = 0.01  # between two calls
LONGEST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class RunnerCallTarget:
    """One attempt and its runner. `sealed`: secrets by name, as they came, base64."""

    runner: Runner
    calls: RunnerCalls
    task: RunnerTask
    log: AttemptLog
    now: Callable[[], float]
    timeout_seconds: float | None = None
    sealed: Mapping[str, str] = field(default_factory=dict, repr=False)
    call_seconds: float = CALL_SECONDS

    def reconcile(self, kept: RunnerRecord) -> tuple[RunnerRecord, float]:
        """Return what must be kept, and the seconds until the next call.

        Raise Hung, Exhausted, StateNotStorable, and the errors of the runner.
        """
        context = self._context(kept)
        answer: object = self._call("reconcile", lambda: self.runner.reconcile(context))
        if not isinstance(answer, RunnerObservation):
            raise StateNotStorable(f"reconcile answered {type(answer).__name__}, and no Look")
        return records.checked(answer, kept, context.now), _pause(answer.poll_seconds)

    def abort(self, kept: RunnerRecord, stop: Stop) -> tuple[RunnerRecord, float]:
        """What is to be kept now: over, or when to ask again. Raises like `reconcile`."""
        context = replace(self._context(kept), stop=stop)
        answer: object = self._call("abort", lambda: self.runner.abort(context))
        if not isinstance(answer, AbortResult):
            raise StateNotStorable(f"abort answered {type(answer).__name__}, and no Aborted")
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
            secrets={name: base64.b64decode(value) for name, value in self.sealed.items()},
            deadline=deadline,
        )


def _pause(seconds: float) -> float:
    try:
        return min(max(float(seconds), SHORTEST_SECONDS), LONGEST_SECONDS)
    except (TypeError, ValueError) as error:
        raise StateNotStorable(f"{seconds!r} is no number of seconds") from error


def describe_task(
    run: RunAttempt, spec: GroupSpec, env: Mapping[str, str], *, cell: str, root: Path
) -> RunnerTask:
    """The attempt as its runner sees it."""
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
