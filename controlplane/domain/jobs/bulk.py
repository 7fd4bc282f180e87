"""Bulk operations: one action on all jobs that a filter selects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import JOB_STATES, TERMINAL
from controlplane.spec import Fault, InvalidSpec

MAX_RUNNING = 5
"""Operations of one user that may run at the same time."""

MAX_REFUSALS = 20
"""Refusals that an operation stores with their texts; it counts all of them."""


class BulkAction(StrEnum):
    """What an operation does with each job."""

    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"
    HOLD = "hold"
    RELEASE = "release"


class BulkState(StrEnum):
    """The state of an operation. `DONE`: all jobs were processed; `STOPPED`: it ended before."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


_ENDED = JOB_STATES & TERMINAL
STATES_OF = MappingProxyType(
    {
        BulkAction.CANCEL: JOB_STATES - TERMINAL,
        BulkAction.RETRY: _ENDED - {TaskState.SUCCEEDED},
        BulkAction.DELETE: _ENDED,
        BulkAction.HOLD: JOB_STATES - TERMINAL,
        BulkAction.RELEASE: JOB_STATES - TERMINAL,
    }
)
"""The states of jobs to which an action applies; the others are not selected."""


@dataclass(frozen=True, slots=True)
class BulkPlace:
    """How far an operation is: its round, and the job up to which the round is complete, by id.

    A cancel has two rounds: it cancels the jobs that hold no capacity before those that hold some.
    Otherwise placement would start waiting jobs of the operation on the capacity of cancelled ones,
    which the operation would stop moments later. Other actions have one round.
    """

    job_id: int
    is_first: bool = False

    def as_number(self, last_job_id: int) -> int:
        """Return the place as one number, which grows; that of a first round is below 0."""
        return self.job_id - last_job_id - 1 if self.is_first else self.job_id

    @classmethod
    def read(cls, number: int, last_job_id: int) -> "BulkPlace":
        """Return the place of a number."""
        return cls(number + last_job_id + 1, is_first=True) if number < 0 else cls(number)

    @classmethod
    def start(cls, action: BulkAction) -> "BulkPlace":
        """Return the place at the start of an operation."""
        return cls(0, is_first=action is BulkAction.CANCEL)


@dataclass(frozen=True, slots=True)
class BulkFilter:
    """The jobs of an operation: those that match all fields; an empty field does not filter.

    `project`: as domain/project, or the name of one in the domain `default`.
    """

    project: str | None = None
    pool: str | None = None
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    states: Sequence[TaskState] = ()

    def states_for(self, action: BulkAction) -> list[TaskState]:
        """Return the states of the selected jobs, in which the action applies to them."""
        return sorted(STATES_OF[action] & set(self.states or STATES_OF[action]))

    def as_document(self) -> dict[str, Any]:
        """Return the filter for the API and the database."""
        return {
            "project": self.project,
            "pool": self.pool,
            "name": self.name,
            "labels": dict(self.labels),
            "states": [state.name for state in self.states],
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "BulkFilter":
        """Return the filter of a document."""
        return cls(**{**document, "states": [TaskState[name] for name in document["states"]]})


def check_bulk(action: BulkAction, wanted: BulkFilter, reason: str | None) -> None:
    """Raise InvalidSpec for a filter that selects everything or nothing, or a missing reason.

    `reason`: None for a preview, which needs none.
    """
    faults = []
    if not (wanted.project or wanted.pool or wanted.name or wanted.labels):
        faults.append(Fault("filter", "must have a project, a pool, a name or a label"))
    if not wanted.states_for(action):
        known = ", ".join(state.name for state in sorted(STATES_OF[action]))
        faults.append(Fault("filter.states", f"must have one of {known} to {action} jobs"))
    if reason is not None and not reason.strip():
        faults.append(Fault("reason", "is required"))
    if faults:
        raise InvalidSpec(faults)
