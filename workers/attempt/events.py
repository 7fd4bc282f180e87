"""Messages between a cell and its drivers about an attempt, and what an attempt needs to run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from controlplane.contract.states import FailureKind, Phase


class Permit(Enum):
    """Whether a container may be created, or started, now."""

    YES = "yes"
    NOT_YET = "not yet"
    NEVER = "never"


def always() -> Permit:
    """Permit without a condition."""
    return Permit.YES


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt to run: the order, its group's spec and the environment.

    `permit` is called just before the container is created, and before it is started. `started_at`:
    when an earlier process of the cell reported RUNNING.
    """

    run: RunAttempt
    spec: GroupSpec
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    permit: Callable[[], Permit] = field(default=always, compare=False)
    started_at: float | None = field(default=None, compare=False)

    @property
    def uid(self) -> str:
        """The attempt's uid; the container's name derives from it."""
        return self.run.uid


@dataclass(frozen=True, slots=True)
class BuildingEvent:
    """The attempt is in `phase`; `progress` in percent, if known.

    `at`: since when, in seconds since 1970; None: since the event is received.
    """

    uid: str
    phase: Phase
    progress: int | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class StageFailedEvent:
    """A try of a stage failed and another follows. `text`: the number of the try, and why."""

    uid: str
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class StartedEvent:
    """The container's main process runs since `at` (seconds, wall clock).

    With a health check, `at` is when it passed. `addresses`: "host:port" of its ports, by name.
    """

    uid: str
    at: float
    container_id: str | None = None
    addresses: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ReconciledEvent:
    """The runner of the attempt was called: its phase, and the state that was stored.

    `at`: when, in seconds since 1970; None: when the event is received.
    """

    uid: str
    phase: str
    state: Mapping[str, Any]
    at: float | None = None


@dataclass(frozen=True, slots=True)
class EndedEvent:
    """The attempt has ended and its container is removed or stopped permanently.

    `exit_code` is None if no process ever ran, except for a command that could not be executed: 127
    (not found) or 126, as in a shell. `failure_kind` None: the program ended by itself, judged by
    its exit code, or the cell ordered the end (reason "stopped", "timeout", …), whatever the code.
    `started_at` None: it never was RUNNING. `never_created`: no container ever existed. Reasons:
    workers.attempt.outcome.
    """

    uid: str
    at: float
    exit_code: int | None = None
    failure_kind: FailureKind | None = None
    reason: str | None = None
    message: str | None = None
    result: str | None = None
    result_truncated: bool = False
    outputs: tuple[Mapping[str, Any], ...] | None = None
    started_at: float | None = None
    container_id: str | None = None
    usage: Mapping[str, Any] | None = None
    never_created: bool = False


DriverEvent = BuildingEvent | StageFailedEvent | StartedEvent | ReconciledEvent | EndedEvent


class Listener(Protocol):
    """Receives driver events; thread-safe, returns at once, never raises."""

    def __call__(self, event: DriverEvent, /) -> None:
        """Receive one event."""


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A container of this cell on the engine. `running`: its main process has not ended."""

    uid: str
    running: bool
    container_id: str | None = None
