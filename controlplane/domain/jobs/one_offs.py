"""Tasks in the format of Diego's clients: four lifecycles, instants in nanoseconds."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import overload

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import TERMINAL

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Lifecycle(StrEnum):
    """Lifecycle states of Diego."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    RESOLVING = "RESOLVING"  # completed, and claimed by a client


def lifecycle_of(state: TaskState) -> Lifecycle:
    """Return the lifecycle of an unclaimed task in `state`."""
    if state in TERMINAL:
        return Lifecycle.COMPLETED
    is_running = state in (TaskState.BUILDING, TaskState.RUNNING)
    return Lifecycle.RUNNING if is_running else Lifecycle.PENDING


@overload
def nanoseconds_of(at: datetime) -> int: ...
@overload
def nanoseconds_of(at: None) -> None: ...
def nanoseconds_of(at: datetime | None) -> int | None:
    """Return nanoseconds since 1970, in steps of a stored microsecond."""
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1) * 1_000
