"""Interface of hooks: a job's kind (`kind: batch`) adapts the lifecycle of its tasks.

Source: Backend.AI, where each type of session has a hook, which "can modify session configuration"
before scheduling and is called during the lifecycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

from controlplane.contract.states import TaskState
from controlplane.domain.state.transitions import Event, is_legal

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Refusal(ValueError):
    """Rejection of the terms, with the field of the group at fault."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class HookUnavailable(Exception):
    """A hook did not return in time, or too many of its earlier calls have not returned."""


class UnknownKind(LookupError):
    """No hook of the kind is installed. The text lists the installed ones."""


@dataclass(frozen=True, slots=True)
class GroupOrigin:
    """The origin of a group, which a hook cannot change. `labels`: of its job."""

    job: str = ""
    group: str = ""
    domain: str = ""
    project: str = ""
    pool: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """The terms of a group, which its job's kind may refuse or change before placement.

    `timeout_seconds`, `idle_timeout_seconds`, `lifetime_seconds`: limits of an attempt.
    `has_health_check`: an attempt is RUNNING only once its check has passed. `ports`: names. Fields
    have the format and limits of the job document; `constraints` and `placement_tags` are the
    effective ones of job and group.
    """

    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    lifetime_seconds: float | None = None
    has_health_check: bool = False
    ports: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    constraints: tuple[Mapping[str, Any], ...] = ()
    placement_tags: tuple[str, ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    resources: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    origin: GroupOrigin = GroupOrigin()


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt as reported by its cell.

    `event`: EXITED_ZERO, USER_FAILED, SYSTEM_FAILED or VANISHED. `was_running`: whether it was
    RUNNING before. `exit_code`: None if no program ended. `attempt`: its uid.
    """

    event: Event
    was_running: bool
    exit_code: int | None = None
    attempt: str = ""
    task_id: int = 0
    job_id: int = 0


class HookEvent(StrEnum):
    """Lifecycle events of attempts for which hooks are called."""

    PLACED = "placed"
    STARTED = "started"


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """A lifecycle event of an attempt. `attempt`: its uid; `index`: of its task."""

    moment: HookEvent
    at: datetime
    job_id: int
    job: str
    group: str
    task_id: int
    index: int
    attempt: str
    number: int
    cell: str


@dataclass(frozen=True, slots=True)
class EndOfJob:
    """Result of a hook that ends the attempt's job as FAILED, with `text` as the message."""

    text: str


class Hook(Protocol):
    """One kind of job. It may also have the methods of `PlacedHook` and `StartedHook`."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        """Return the terms for this kind. Raise Refusal or ValueError."""

    def on_end(self, end: AttemptEnd) -> Event:
        """Return the event of the task, which must have a row in the transition table."""


class HookSource(Protocol):
    """The installed hooks, for one submission or rerun."""

    def find(self, kind: str) -> Hook:
        """Return the hook of a kind. Raise UnknownKind; HookUnavailable once no time is left."""


class PlacedHook(Protocol):
    """A hook that is called after an attempt was placed on a cell."""

    def on_placed(self, event: LifeEvent) -> EndOfJob | None:
        """Handle the placement. Called at least once for each attempt."""


class StartedHook(Protocol):
    """A hook that is called after the program of an attempt has started."""

    def on_started(self, event: LifeEvent) -> EndOfJob | None:
        """Handle the start. Called at least once for each attempt with a reported start."""


_ENDS = frozenset(
    {
        Event.EXITED_ZERO,
        Event.USER_FAILED,
        Event.SYSTEM_FAILED,
        Event.VANISHED,
        Event.HEALTH_FAILED,
    }
)


def meaning_of(end: AttemptEnd, hook: Hook, state: TaskState) -> Event:
    """Return the hook's event for an end in `state`, or the reported event if it is illegal."""
    event = hook.on_end(end)
    return event if event in _ENDS and is_legal(state, event) else end.event
