"""Lifecycles of one-off tasks, as in Diego."""

from enum import StrEnum

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import TERMINAL


class Lifecycle(StrEnum):
    """Lifecycle of a one-off task."""

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
