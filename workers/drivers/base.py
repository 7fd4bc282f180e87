"""What every driver promises: attempts are started, adopted and stopped by uid, idempotently, and every end is told.

A driver is asynchronous. `start` and `adopt` return at once; what happens is told through the
`Listener`, from any thread: zero or more Building, at most one Started, exactly one Ended, in that
order. One conformance suite (tests/conformance) holds all drivers to these promises.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from controlplane.contract.orders import GroupSpec, RunAttempt
from controlplane.contract.states import FailureKind, Phase


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt to run: the order, its group's spec and the environment made for it."""

    run: RunAttempt
    spec: GroupSpec
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        """The attempt's uid; the container's name derives from it."""
        return self.run.uid


@dataclass(frozen=True, slots=True)
class Building:
    """The attempt is in `phase`; `progress` in percent, if known."""

    uid: str
    phase: Phase
    progress: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The container's main process runs since `at` (seconds, wall clock)."""

    uid: str
    at: float
    container_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The attempt is over and its container is gone or stopped for good.

    `exit_code` is None when no process ever ran. `failure_kind` None means: the program's own end,
    judged by its exit code. `started_at` None: it never ran.
    """

    uid: str
    at: float
    exit_code: int | None = None
    failure_kind: FailureKind | None = None
    reason: str | None = None
    message: str | None = None
    result: str | None = None
    result_truncated: bool = False
    started_at: float | None = None
    container_id: str | None = None
    usage: Mapping[str, Any] | None = None


DriverEvent = Building | Started | Ended


class Listener(Protocol):
    """Takes driver events; thread-safe, returns at once, never raises."""

    def __call__(self, event: DriverEvent) -> None:
        """Take one event."""


@dataclass(frozen=True, slots=True)
class Found:
    """A container of this cell that exists on the engine. `running`: its main process has not ended."""

    uid: str
    running: bool
    container_id: str | None = None


class Driver(Protocol):
    """Runs attempts on one kind of engine."""

    name: str

    def start(self, launch: Launch) -> None:
        """Begin the attempt. A container of the same uid that already exists is adopted, never started twice."""

    def adopt(self, launch: Launch) -> None:
        """Take charge again of an attempt begun by an earlier process of this cell.

        Its container runs on: Started and later Ended follow. It has ended: Ended follows with its
        real exit code. It was never created, or has vanished: Ended with failure kind OUTSIDE, and
        it will not come.
        """

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        """Ask for the end: the stop signal, after the grace SIGKILL; at once with `force`. Ended follows. Repeatable."""

    def find(self) -> Iterable[Found]:
        """The containers on the engine that carry this installation's and this cell's labels."""

    def remove(self, uid: str) -> None:
        """Delete what is left of an ended attempt's container and workspace (logs stay). Repeatable."""

    def close(self) -> None:
        """Let go of threads and connections; containers keep running."""
