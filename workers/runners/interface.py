"""The interface of runners.

The cell calls a runner repeatedly. In each call the runner checks its attempt, acts, and returns
the time of the next call. It keeps nothing in memory: its state is a JSON object, which the cell
writes to disk before the next call. So a runner first returns what it is about to do, and does it
in the next call. After a kill, the next process of the cell continues with the last stored state. A
call may be repeated at any time, so every action outside needs a unique name, such as the attempt's
uid.

Source: Flyte's plugins (phase, state, abort).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from controlplane.contract.messages.launch_context import MAX_PLUGIN_STATE_BYTES

# 64 KiB as JSON: it travels with each report of the attempt.
MAX_STATE_BYTES = MAX_PLUGIN_STATE_BYTES
MAX_WORDS = 63
POLL_SECONDS = 1.0
# A longer call is abandoned. Calls over a network need shorter timeouts.
CALL_SECONDS = 30.0


class RunnerPhase(StrEnum):
    """The phase of an attempt. The last three are ends."""

    QUEUED = "queued"  # accepted, and not begun
    INITIALIZING = "initializing"  # its resources are being created
    RUNNING = "running"  # its work has begun: time limits count from here
    SUCCEEDED = "succeeded"
    RETRYABLE_FAILURE = "retryable_failure"  # retried within the budget
    FAILED = "failed"  # permanent: never retried

    @property
    def is_end(self) -> bool:
        """Whether the attempt has ended."""
        return self in _ENDS


_ENDS = (RunnerPhase.SUCCEEDED, RunnerPhase.RETRYABLE_FAILURE, RunnerPhase.FAILED)


class FailureOrigin(StrEnum):
    """The cause of a retryable failure, which selects the retry budget to charge."""

    USER = "user"  # the task's own work
    SYSTEM = "system"  # a service that the runner depends on


@dataclass(frozen=True, slots=True)
class RunnerObservation:
    """The result of a call of `reconcile`.

    `state`: stored for the next call; None: unchanged. `words`: the runner's own name of the phase,
    at most 63 characters. `message`, `reason`: of a failure, for people and for programs. `result`:
    of a success, instead of the result file. `poll_seconds`: time to the next call, unless it is an
    end.
    """

    phase: RunnerPhase
    state: Mapping[str, Any] | None = None
    words: str = ""
    message: str = ""
    reason: str = ""
    fault: FailureOrigin = FailureOrigin.USER
    result: str | None = None
    poll_seconds: float = POLL_SECONDS


@dataclass(frozen=True, slots=True)
class AbortResult:
    """The result of a call of `abort`. `is_done`: no work of the attempt runs or will run.

    `state`: stored, also for the next attempt of the task; None: unchanged.
    """

    is_done: bool
    state: Mapping[str, Any] | None = None
    poll_seconds: float = POLL_SECONDS


@dataclass(frozen=True, slots=True)
class RunnerTask:
    """The attempt and its options. `resources`: cpu_millis, memory_mib, disk_mib, gpu, ….

    `env`: the task's variables, those of secrets, and CELLRUN_*. `inputs`, `outputs`,
    `result_file`, `checkpoint_path`: paths of the job, which are below `root` (see `path`). Inputs
    exist from the first call on; outputs and the result file are read after a success.
    """

    uid: str
    number: int
    task_id: int
    index: int
    job_id: int
    job_name: str
    group: str
    replicas: int
    cell: str
    image: str | None
    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    resources: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    result_file: str | None
    checkpoint_path: str | None
    root: Path

    def path(self, path: str) -> Path:
        """Return the path on this host for a path of the job. Raise ValueError if it has `..`."""
        if ".." in path.split("/"):
            raise ValueError(f"{path!r} leads elsewhere")
        return self.root / path.lstrip("/")


class AttemptLog(Protocol):
    """The attempt's log, like the output of a container."""

    def out(self, text: str) -> None:
        """Add lines to stdout."""

    def err(self, text: str) -> None:
        """Add lines to stderr."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop order. `is_forced`: the grace period is over, or there is none."""

    reason: str
    is_forced: bool


@dataclass(frozen=True, slots=True)
class Context:
    """All arguments of a call. Times are in seconds since 1970.

    `state` is the last stored state; it is empty in the first call of a task. The first call of a
    later attempt has the state of the previous one that was lost, failed or was evicted. `secrets`:
    values by name. `deadline`: when `timeout_seconds` ends the attempt. `stop` is None except in
    `abort`.
    """

    task: RunnerTask
    state: Mapping[str, Any]
    log: AttemptLog
    now: float
    secrets: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    deadline: float | None = None
    stop: Stop | None = None


class Runner(Protocol):
    """Runs attempts of one task type: one object for all attempts, called from several threads."""

    def reconcile(self, context: Context) -> RunnerObservation:
        """Check the attempt and advance it, in `CALL_SECONDS` at most.

        The cell retries a call that raises after a pause; the third error in a row ends the attempt
        with a system failure.
        """

    def abort(self, context: Context) -> AbortResult:
        """Stop the attempt's work outside, and return whether it has ended. Repeatable.

        The cell calls it until it is done, after a stop order or a failure, but not after a success
        or a permanent failure. Stop at once with `context.stop.is_forced`, otherwise within the
        task's grace period.
        """
