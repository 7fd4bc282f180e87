"""The interface of runners: a runner is called repeatedly, checks its attempt, acts, and sets the
next call.

A runner keeps nothing in memory. Its state is a JSON object that is on the cell's disk before the
runner is called again: it records what it is about to do, and does it in the next call. After a
kill, the next process of the cell continues with the last kept state. A call may be repeated at any
time, so every action outside needs a name of its own, such as the attempt's uid.

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
    """How far the attempt is. The last three are ends."""

    QUEUED = "queued"  # accepted, and not begun
    INITIALIZING = "initializing"  # what it needs is being made
    RUNNING = "running"  # its own work has begun: limits of time count from here
    SUCCEEDED = "succeeded"
    RETRYABLE_FAILURE = "retryable_failure"  # another attempt may do better, if the budget lasts
    FAILED = "failed"  # for good: no budget makes another attempt

    @property
    def is_end(self) -> bool:
        """Whether the attempt is over."""
        return self in _ENDS


_ENDS = (RunnerPhase.SUCCEEDED, RunnerPhase.RETRYABLE_FAILURE, RunnerPhase.FAILED)


class FailureOrigin(StrEnum):
    """Whose fault a retryable failure is, and so whose budget pays."""

    USER = "user"  # what the task requested
    SYSTEM = "system"  # what the runner depends on


@dataclass(frozen=True, slots=True)
class RunnerObservation:
    """What a call of `reconcile` found.

    `state`: to be kept; None: as it was. `words`: the phase in words of the runner's own, at most
    63 characters. `message`, `reason`: of a failure, for people and for programs. `result`: of a
    success, in place of the result file. `poll_seconds`: when to ask again, if not an end.
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
    """What a call of `abort` came to. `is_done`: nothing of the attempt runs, or will.

    `state`: to be kept, for the next attempt of the task too; None: as it was.
    """

    is_done: bool
    state: Mapping[str, Any] | None = None
    poll_seconds: float = POLL_SECONDS


@dataclass(frozen=True, slots=True)
class RunnerTask:
    """The attempt and its request. `resources`: cpu_millis, memory_mib, disk_mib, gpu, ….

    `env`: the task's own variables, those of secrets, and CELLRUN_*. `inputs`, `outputs`,
    `result_file`, `checkpoint_path`: as the job names them; they are below `root` (see `path`).
    Inputs exist from the first call on; outputs and result file are read after a success.
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
        """Where a path of the job stands on this host. Raises ValueError for one with `..`."""
        if ".." in path.split("/"):
            raise ValueError(f"{path!r} leads elsewhere")
        return self.root / path.lstrip("/")


class AttemptLog(Protocol):
    """The attempt's own log, as a container's output is."""

    def out(self, text: str) -> None:
        """Add a line, or lines, to stdout."""

    def err(self, text: str) -> None:
        """Add a line, or lines, to stderr."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why and how the attempt is to end. `is_forced`: its grace is over, or it was given none."""

    reason: str
    is_forced: bool


@dataclass(frozen=True, slots=True)
class Context:
    """All arguments of a call. Instants in seconds since 1970.

    `state` is the last kept state; in the first call of a task it is empty, in that of a later
    attempt the state of an attempt that was lost, failed or was evicted. `secrets`: values by name.
    `deadline`: when `timeout_seconds` end it. `stop` is None except in `abort`.
    """

    task: RunnerTask
    state: Mapping[str, Any]
    log: AttemptLog
    now: float
    secrets: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    deadline: float | None = None
    stop: Stop | None = None


class Runner(Protocol):
    """Runs attempts of one task type. One object for all of them, called from several threads."""

    def reconcile(self, context: Context) -> RunnerObservation:
        """See how the attempt is and bring it on. Quick: `CALL_SECONDS` at most.

        What it raises is tried again after a pause; the third time in a row ends the attempt as a
        failure of the system.
        """

    def abort(self, context: Context) -> AbortResult:
        """End what the attempt does outside, and return whether it has ended. Repeatable.

        Called until it is done, after a stop order or a failure; not after a success or a permanent
        failure. With `context.stop.is_forced` at once, otherwise within the task's grace period.
        """
